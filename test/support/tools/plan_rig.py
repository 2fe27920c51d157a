# SPDX-License-Identifier: Apache-2.0
"""A fleet as tests of planning want it: chunks of 3 s, asked for once a second."""

from __future__ import annotations

from lerobot_serve.tools.plan.demand import FleetDemand

USUAL = {
    'rate_hz': 1.0,
    'network_s': 0.01,
    'chunk_s': 3.0,
    'max_age_s': 3.0,
    'failover_s': 1.0,
    'request_timeout_s': 5.0,
    'jitter': 0.1,
}


def fleet_demand(robots: int, **changes: float) -> FleetDemand:
    return FleetDemand(robots=robots, **{**USUAL, **changes})

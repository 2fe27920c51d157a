# SPDX-License-Identifier: Apache-2.0
"""A gateway with real doors before a real router."""

from __future__ import annotations

import pytest
from support.gateway.doors_rig import DoorsRig

ROUTER = '/policy_router'


@pytest.fixture
def doors(router_rig, link):
    """Starts a gateway with doors, over the link of the test."""
    started = []

    def start(*names: str, **parameters: object) -> DoorsRig:
        if link == 'zenoh':
            endpoint = router_rig.fleet.links.endpoint(parameters.get('server', ROUTER))
            parameters = {'link': 'zenoh', 'zenoh_connect': f"['{endpoint}']", **parameters}
        started.append(DoorsRig(*names, **parameters))
        return started[-1]

    yield start
    for each in started:
        each.close()

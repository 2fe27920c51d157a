# SPDX-License-Identifier: Apache-2.0
"""A gateway before a real router, over the link of the test: its doors real, or the test's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.gateway.doors_rig import DoorsRig
from support.gateway.node_rig import GatewayNodeRig

ROUTER = '/policy_router'


@pytest.fixture
def start_gateway(router_rig, link):
    """Makes a rig with parameters, which is closed after the test."""
    started = []

    def start(make: Any, *names: str, **parameters: object) -> Any:
        if link == 'zenoh':
            endpoint = router_rig.fleet.links.endpoint(parameters.get('server', ROUTER))
            parameters = {'link': 'zenoh', 'zenoh_connect': f"['{endpoint}']", **parameters}
        started.append(make(*names, **parameters))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def doors(start_gateway):
    return partial(start_gateway, DoorsRig)


@pytest.fixture
def gateway(start_gateway, monkeypatch):
    return partial(start_gateway, partial(GatewayNodeRig, monkeypatch))

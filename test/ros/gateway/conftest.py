# SPDX-License-Identifier: Apache-2.0
"""Gateways before a real router: with real doors, and with a door that is the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from functools import partial
from typing import Any

import pytest
from support.gateway.doors_rig import DoorsRig, RunningNode
from support.gateway.node_rig import GatewayNodeRig

ROUTER = '/policy_router'


@contextlib.contextmanager
def gateways(
    make: Callable[..., RunningNode], router_rig: Any, link: str
) -> Iterator[Callable[..., RunningNode]]:
    """Give what starts gateways with parameters over a link; they end with the context."""
    with contextlib.ExitStack() as stack:

        def start(*names: str, **parameters: object) -> RunningNode:
            if link == 'zenoh':
                endpoint = router_rig.fleet.links.endpoint(parameters.get('server', ROUTER))
                parameters = {'link': 'zenoh', 'zenoh_connect': [endpoint], **parameters}
            return stack.enter_context(contextlib.closing(make(*names, **parameters)))

        yield start


@pytest.fixture
def doors(router_rig, link):
    with gateways(DoorsRig, router_rig, link) as start:
        yield start


@pytest.fixture
def gateway(router_rig, monkeypatch, link):
    with gateways(partial(GatewayNodeRig, monkeypatch), router_rig, link) as start:
        yield start

# SPDX-License-Identifier: Apache-2.0
"""A router between links: replicas over Zenoh, robots over ROS 2."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def link() -> str:
    """The test sets the links of each node itself."""
    return 'ros'


@pytest.fixture
def endpoints() -> list[str]:
    """Free TCP endpoints."""
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(('127.0.0.1', 0))
    found = [f'tcp/127.0.0.1:{each.getsockname()[1]}' for each in sockets]
    for each in sockets:
        each.close()
    return found


def test_replicas_of_both_links_serve_one_fleet(router_rig, endpoints):
    a, _ = endpoints
    router_rig.server('a', 'a', zenoh_listen=f"['{a}']")
    router_rig.server('b', 'b')
    router_rig.fleet.start(
        'router',
        'policy_router',
        slot_a="['zenoh:/a/policy_server']",
        slot_b="['/b/policy_server']",
        zenoh_connect=f"['{a}']",
        discovery_timeout_s=20.0,
    )
    router_rig.wait_for_health('healthy')
    robot = router_rig.robot()
    for slot in ('a', 'b'):
        robot.episode_id = router_rig.episode(slot)
        assert robot.round_trip(episode_id=router_rig.episode(slot)).slot == slot

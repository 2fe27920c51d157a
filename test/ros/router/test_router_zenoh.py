# SPDX-License-Identifier: Apache-2.0
"""A router between links: replicas over Zenoh, robots over ROS 2."""

from __future__ import annotations

import socket

import pytest
from support.nodes.router_rig import QUICK, ROUTER
from support.nodes.small_client import SmallClient

from lerobot_serve.wire.schema import Status
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import ReplicaState


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


@pytest.mark.slow
@pytest.mark.parametrize('lost', ['a1', 'a2'], ids=['over Zenoh', 'over ROS'])
def test_a_replica_of_one_link_takes_over_from_one_of_the_other(router_rig, endpoints, lost):
    over_zenoh, _ = endpoints
    router_rig.server('a1', 'prod', policy='a', zenoh_listen=[over_zenoh])
    router_rig.server('a2', 'prod', policy='a')
    router_rig.fleet.start(
        'router',
        'policy_router',
        slot_prod="['zenoh:/a1/policy_server', '/a2/policy_server']",
        zenoh_connect=[over_zenoh],
        **QUICK,
    )
    router_rig.wait_for_health('healthy')
    robot = router_rig.robot()

    def served(number: int) -> None:
        chunk = robot.round_trip(episode_id=f'episode-{number}')
        assert (chunk.status, chunk.slot) == (Status.OK, 'prod')

    for number in range(10):
        served(number)
    router_rig.kill(lost)
    # no request without a chunk, before and after the router knows
    for number in range(10):
        served(number)

    def is_given_up() -> bool:
        (slot,) = router_rig.state.slots
        states = {each.server: each.state for each in slot.replicas}
        assert len(states) == 2
        ready = [server for server, state in states.items() if state == ReplicaState.READY]
        return len(ready) == 1 and f'/{lost}/' not in ready[0]

    router_rig.wait(is_given_up, 'it is given up')
    assert router_rig.state.health == 'healthy'
    served(0)


def test_robots_of_both_links_are_one_fleet(router_rig, endpoints):
    at_router, _ = endpoints
    for slot in ('a', 'b'):
        router_rig.server(slot, slot)
    router_rig.router(slot_a=['a'], slot_b=['b'], zenoh_listen=[at_router])
    router_rig.wait_for_health('healthy')
    link = ZenohLink(ZenohSettings(connect=(at_router,)))
    try:
        over_ros = router_rig.robot('over_ros')
        over_zenoh = SmallClient(router_rig.node, ROUTER, 'over_zenoh', link, cameras=())
        over_zenoh.open()
        for number, robot in enumerate((over_ros, over_zenoh) * 3):
            for slot in ('a', 'b'):
                episode = router_rig.episode(slot, salt=number)
                assert robot.round_trip(episode_id=episode).slot == slot
        # both are counted in the same slots
        router_rig.wait(
            lambda: [each.episodes for each in router_rig.state.slots] == [6, 6], 'all episodes'
        )
        over_zenoh.close()
    finally:
        link.close()

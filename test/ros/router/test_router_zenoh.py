# SPDX-License-Identifier: Apache-2.0
"""A router between links: replicas over Zenoh, robots over ROS 2."""

from __future__ import annotations

import pytest
from support.nodes.router_rig import QUICK, ROUTER
from support.nodes.small_client import SmallClient
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.contract.schema import Status
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
    return [free_endpoint() for _ in range(2)]


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
    servers = {'a1': 'zenoh:/a1/policy_server', 'a2': '/a2/policy_server'}
    router_rig.fleet.start(
        'router',
        'policy_router',
        # the first one is asked first
        slot_prod=sorted(servers.values(), key=servers[lost].__ne__),
        zenoh_connect=[over_zenoh],
        **{**QUICK, 'reply_timeout_s': 2.0},
    )
    router_rig.wait_for_health('healthy')
    robot, turns = router_rig.robot(), router_rig.steering('a').turns
    turns.close_gate()
    robot.request(episode_id='episode')
    assert router_rig.wait_for_decision('episode').server == servers[lost]
    router_rig.kill(lost)
    # the limit of the request that waits is that of its start; the other replica has time
    assert not router_rig.set(reply_timeout_s=20.0)
    turns.open_gate()
    chunks = [robot.take(), *(robot.round_trip(episode_id='episode') for _ in range(10))]
    assert {(chunk.status, chunk.slot) for chunk in chunks} == {(Status.OK, 'prod')}
    router_rig.wait_for_drop('failed_over')

    def is_given_up() -> bool:
        (slot,) = router_rig.state.slots
        states = {each.server: each.state for each in slot.replicas}
        assert len(states) == 2
        ready = [server for server, state in states.items() if state == ReplicaState.READY]
        return len(ready) == 1 and f'/{lost}/' not in ready[0]

    router_rig.wait(is_given_up, 'it is given up')
    assert router_rig.state.health == 'healthy'


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

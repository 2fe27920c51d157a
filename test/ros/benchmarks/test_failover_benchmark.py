# SPDX-License-Identifier: Apache-2.0
"""Whom the robots of the recovery benchmark ask; its processes are those of the demo."""

from __future__ import annotations

from benchmarks.failover import link_of, RESTART, robot, ROUTED, router, SECOND, SETUPS
from lerobot_serve.demo import fleet_names


def test_a_robot_asks_whom_its_way_to_recover_says(tmp_path):
    asked = {
        way: robot(way, 'robot_1', 7, link_of(way))[0].parameters['servers'] for way in SETUPS[:3]
    }
    assert asked[RESTART] == ['/a1/policy_server']
    assert asked[SECOND] == ['/a1/policy_server', '/a2/policy_server']
    assert asked[ROUTED] == [fleet_names.ROUTER]
    assert router(ROUTED, tmp_path, link_of(ROUTED)).parameters['slot_prod'] == asked[SECOND]


def test_nobody_writes_traces_that_nobody_reads():
    parts = robot(ROUTED, 'robot_1', 7, link_of(ROUTED))
    assert [part.executable for part in parts] == ['edge_controller', 'sim_robot']
    assert not [name for part in parts for name in part.parameters if 'trace' in name]


def test_over_zenoh_a_router_listens_for_robots_and_connects_to_its_servers(tmp_path):
    over_zenoh = next(way for way in SETUPS if way.link == 'zenoh' and way.is_routed)
    link = link_of(over_zenoh)
    parameters = router(over_zenoh, tmp_path, link).parameters
    listening = [link.endpoints['router']]
    assert parameters['zenoh_listen'] == listening
    edge = robot(over_zenoh, 'robot_1', 7, link)[0].parameters
    assert (edge['link'], edge['zenoh_connect']) == ('zenoh', listening)
    servers = [link.endpoints[name] for name in ('a1', 'a2')]
    assert parameters['zenoh_connect'] == servers
    assert link_of(ROUTED).endpoints == {}

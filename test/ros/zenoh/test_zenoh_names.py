# SPDX-License-Identifier: Apache-2.0
"""Two servers of one name, and two robots of one, on one Zenoh network."""

from __future__ import annotations

import pytest
from support.nodes.edge_rig import Seen, SHORT
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve_interfaces.msg import EdgeState

LIMIT_S = 30.0
KIND = {'policy_kind': 'null'}


@pytest.mark.slow
def test_a_second_server_of_a_name_ends_with_one_sentence(edge_rig):
    endpoint = free_endpoint()
    edge_rig.start_server(zenoh_listen=[endpoint])
    edge_rig.start(link='zenoh', zenoh_connect=[endpoint])
    edge_rig.wait_for_play()
    second = edge_rig.start_server(zenoh_listen=[free_endpoint()], zenoh_connect=[endpoint])
    assert second.wait(LIMIT_S) == 1
    log = edge_rig.log('server_2')
    assert "error: another server has the name /policy_server in zenoh_site 'default'" in log
    assert 'Traceback' not in log
    edge_rig.wait_for_play()
    assert EdgeState.RECONNECTING not in {each.state for each in edge_rig.seen.states}


def test_a_robot_uses_none_of_two_servers_of_one_name(edge_rig):
    """Neither server sees the other, so both start; the robot sees both."""
    endpoints = [free_endpoint(), free_endpoint()]
    edge_rig.start_server(zenoh_listen=[endpoints[0]])
    edge_rig.start(link='zenoh', zenoh_connect=endpoints)
    edge_rig.wait_for_play()
    second = edge_rig.start_server(zenoh_listen=[endpoints[1]])
    words = '2 servers have the name /policy_server'
    edge_rig.wait_for_state(EdgeState.RECONNECTING, reason=words)
    assert 'stop all but one' in edge_rig.seen.last.reason
    edge_rig.stop(second)
    edge_rig.wait_for_play()


@pytest.mark.slow
def test_the_second_robot_of_a_name_waits_until_the_first_is_gone(edge_rig, node):
    endpoint = free_endpoint()
    edge_rig.start_server(zenoh_listen=[endpoint], session_grace_s=3.0, **SHORT)
    first = edge_rig.start(link='zenoh', zenoh_connect=[endpoint], client_id='twin')
    edge_rig.wait_for_play()
    edge_rig.play_robot('/robot_2')
    other = Seen(node, '/robot_2/edge_controller')
    edge_rig.start(namespace='/robot_2', link='zenoh', zenoh_connect=[endpoint], client_id='twin')
    words = "client_id 'twin' is in use by another robot"
    edge_rig.wait(lambda: words in other.last.reason, 'the second robot is refused')
    edge_rig.wait_for_play(30)
    # chunks for the first arrive on the keys of both
    edge_rig.wait(lambda: other.drops().get('stale_epoch'), 'they are dropped')
    assert not other.played
    assert words in edge_rig.log('server_1')
    edge_rig.kill(first)
    edge_rig.wait(lambda: len(other.played) > 5, 'the second robot is driven')

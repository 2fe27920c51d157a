# SPDX-License-Identifier: Apache-2.0
"""A participant of ROS 2 cannot send the chunks of its session to a robot on Zenoh."""

from __future__ import annotations

import pytest
from support.contract.session_request import session_request
from support.nodes.small_client import JOINTS

from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.ros.contract.session_messages import message_of
from lerobot_serve_interfaces.srv import OpenSession

UNUSED = '@lerobot/default/policy_{node}/robot/{client}/0000000a/action_chunk'


@pytest.fixture
def link() -> str:
    """Robots and servers are on Zenoh; the attacker is on ROS 2."""
    return 'zenoh'


def vandal(reply_topic: str) -> OpenSession.Request:
    return message_of(
        session_request('vandal', 1, reply_topic, JOINTS, instance=99), OpenSession.Request
    )


def check_refused(reply: OpenSession.Response) -> None:
    assert (reply.accepted, reply.code) == (False, Refusal.BAD_NAME)
    for words in ('is a Zenoh key', 'opened over ROS 2', '/.../action_chunk', 'over Zenoh'):
        assert words in reply.reason


def test_a_server_refuses_a_zenoh_key_over_ros(rig):
    rig.start(policy_kind='steered')
    victim = rig.client('victim')
    unused = [UNUSED.format(node='server', client=name) for name in ('victim', 'vandal')]
    for key in (victim.ask.reply_topic, *unused):
        check_refused(rig.ask(OpenSession, 'open_session', vandal(key)))
    assert rig.drops()['refused_bad_name'] == 3
    assert rig.status().active_sessions == 1
    assert victim.round_trip().status == Status.OK


@pytest.mark.slow
def test_a_router_refuses_a_zenoh_key_over_ros(router_rig):
    router_rig.slots()
    victim = router_rig.robot('victim')
    unused = UNUSED.format(node='router', client='vandal')
    for key in (victim.ask.reply_topic, unused):
        check_refused(router_rig.ask(OpenSession, 'open_session', vandal(key)))
    router_rig.wait_for_drop('refused_bad_name', 2)
    episode = router_rig.episode('a')
    assert victim.round_trip(episode_id=episode).status == Status.OK

# SPDX-License-Identifier: Apache-2.0
"""What passes over Zenoh is found in a bag where the same over ROS 2 would be."""

from __future__ import annotations

import pytest
import zenoh

from lerobot_serve.contract.names import is_topic
from lerobot_serve.tools.bags.recording.zenoh_recording import (
    recorded_key,
    selectors,
    SERVICES,
)
from lerobot_serve.tools.bags.request_pairs import is_no_second_draw, is_robot_reply_topic
from lerobot_serve.zenoh.keys import PURPOSES, Role, ServerKeys
from lerobot_serve.zenoh.server_endpoint import RECORDED

SERVER = ServerKeys('lab', '/a/policy_server')
ROBOT, ROUTER = SERVER.client(Role.ROBOT, 'robot 1'), SERVER.client(Role.ROUTER, '/policy_router')
WANTED = [
    ROBOT.observation,
    ROUTER.observation,
    ROBOT.no_session,
    ROBOT.reply(7),
    *(ROUTER.reply(7, purpose) for purpose in PURPOSES),
    *(ROBOT.event(service) for service in SERVICES),
]


@pytest.mark.parametrize('key', WANTED)
def test_requests_and_replies_are_recorded_as_topics(key):
    assert sum(zenoh.KeyExpr(each).includes(key) for each in selectors('lab')) == 1
    assert not any(zenoh.KeyExpr(each).intersects(key) for each in selectors('hall'))
    recorded = recorded_key(key)
    assert is_topic(recorded.topic)
    assert recorded.kind.endswith('/Observation') == key.endswith('/observation')


@pytest.mark.parametrize(
    'key', [SERVER.alive, SERVER.status, ROBOT.alive, ROBOT.service('open_session')]
)
def test_nothing_else_is(key):
    assert not any(zenoh.KeyExpr(each).intersects(key) for each in selectors('lab'))


def test_any_client_gives_a_topic_of_a_known_kind():
    for client in ('Lab 3/arm #2', 'ü', '...', 'a' * 300):
        for role in Role:
            keys = SERVER.client(role, client)
            assert all(map(recorded_key, (keys.observation, keys.no_session, keys.reply(1))))
    assert recorded_key(f'{ROBOT.prefix}/event/capture') is None


def test_each_recorded_service_is_published():
    assert tuple(SERVICES) == RECORDED


def test_the_topics_are_those_of_ros():
    assert recorded_key(ROBOT.observation).topic == '/a/policy_server/observation'
    assert recorded_key(ROUTER.reply(7)).topic.startswith('/policy_router/replies/a_policy_server')
    assert recorded_key(ROUTER.reply(7, 'shadow')).topic == '/policy_router/replies/shadow'
    assert is_robot_reply_topic(recorded_key(ROBOT.reply(7)).topic)
    assert not is_robot_reply_topic(recorded_key(ROUTER.reply(7)).topic)
    assert not is_no_second_draw(recorded_key(ROUTER.reply(7, 'second_draw')).topic)

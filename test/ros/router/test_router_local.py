# SPDX-License-Identifier: Apache-2.0
"""
A router reaches its servers on the local path, unless a parameter says otherwise; a recorder hears
what passes there.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.nodes.recorder_process import recorder

from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.schema import Status
from lerobot_serve.ros import qos
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.request_pairs import is_robot_reply_topic, RequestPairer
from lerobot_serve_interfaces.msg import Observation

TOPIC = '/a/policy_server/observation'


@pytest.fixture
def published(router_rig) -> list[bytes]:
    """What is published for the server; the local path shows nothing there."""
    heard: list[bytes] = []
    router_rig.node.create_subscription(
        Observation, TOPIC, heard.append, qos.OBSERVATION_READER, raw=True
    )
    return heard


def start(rig, **parameters: object) -> None:
    rig.server('a', 'prod')
    rig.router(slot_prod=['a'], **parameters)
    rig.wait_for_health('healthy')


def test_requests_pass_no_topic_also_those_of_a_server_that_came_back(router_rig, published):
    start(router_rig)
    client = router_rig.robot()
    for number in range(10):
        assert client.round_trip(episode_id=f'episode-{number}').status == Status.OK
    router_rig.kill('a')
    router_rig.server('a', 'prod')
    router_rig.wait_for_health('healthy')
    # the session is opened there again meanwhile
    router_rig.wait(lambda: client.round_trip().status == Status.OK, 'the first chunk')
    for number in range(10):
        assert client.round_trip(episode_id=f'later-{number}').status == Status.OK
    # the first request after the kill may have met neither
    assert len(published) <= 1


def test_without_the_path_they_are_published(router_rig, published):
    start(router_rig, local_path=False)
    client = router_rig.robot()
    router_rig.wait(lambda: router_rig.node.count_publishers(TOPIC), 'a publisher')

    def heard() -> bool:
        assert client.round_trip().status == Status.OK
        return bool(published)

    router_rig.wait(heard, 'a request on the topic')


def test_a_server_that_offers_none_is_reached_over_its_link(router_rig, published):
    router_rig.server('a', 'prod', local_path=False)
    router_rig.router(slot_prod=['a'])
    router_rig.wait_for_health('healthy')
    client = router_rig.robot()

    def heard() -> bool:
        assert client.round_trip().status == Status.OK
        return bool(published)

    router_rig.wait(heard, 'a request on the topic')


@pytest.mark.parametrize('link', ['local'])
def test_a_recorder_hears_what_passes_no_topic(router_rig, tmp_path):
    """The default recorder has each request and chunk of a robot, with no setting anywhere."""
    start(router_rig)
    client = router_rig.robot()
    bag = tmp_path / 'bag'
    copies = [
        f'{node}/local/{name}'
        for node in ('/policy_router', '/a/policy_server')
        for name in ('observation', 'action_chunk', 'replies/action_chunk')
    ]
    with recorder(bag) as process:
        router_rig.wait(
            lambda: all(router_rig.node.count_subscribers(each) for each in copies), 'a recorder'
        )
        # nodes look for subscribers now and then
        probe = heard_on(router_rig.node, copies[0])
        router_rig.wait(lambda: client.round_trip() and probe, 'a copy')
        asked = [client.round_trip(episode_id='recorded').header.seq for _ in range(40)]
        assert process.stop() == 0
    messages = list(Bag(bag).read())
    pairer = RequestPairer(is_robot_reply_topic)
    pairs = [pair for each in messages for pair in pairer.add(each)]
    seqs = [read_envelope(pair.request).header.seq for pair in pairs]
    recorded = [seq for seq in seqs if seq in asked]
    # it is stopped while the last ones are on their way to it
    assert recorded == asked[: len(recorded)]
    assert len(recorded) >= 5
    assert {each.topic for each in messages} >= {copies[0], copies[1], copies[3], copies[5]}


def heard_on(node: Any, topic: str) -> list[bytes]:
    heard: list[bytes] = []
    node.create_subscription(Observation, topic, heard.append, qos.OBSERVATION_READER, raw=True)
    return heard

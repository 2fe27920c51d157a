# SPDX-License-Identifier: Apache-2.0
"""The client's half of the contract: status, shadow requests, and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import queue

import pytest
from rclpy.node import Node
from rclpy.qos import ReliabilityPolicy
from support.contract.wire_examples import an_observation
from support.nodes.small_client import SmallClient

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.records import ResetEpisodeRequest
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve_interfaces.msg import Observation, ServerStatus
from lerobot_serve_interfaces.srv import ResetEpisode

SERVER = '/policy_server'
SHADOW = f'{SERVER}/shadow_observation'


@pytest.fixture
def server(processes):
    shape = 'joints=6,chunk=30,cameras=,fps=30'
    return processes.start('policy_server', 'policy_server', policy_kind='null', policy_path=shape)


@pytest.fixture
def robot(server, node) -> SmallClient:
    opened = SmallClient(node, SERVER, cameras=())
    opened.open()
    return opened


def test_a_shadow_request_is_answered_like_any_other(robot, node, wait_until):
    client = SessionClient(node, SERVER, lifespan_s=1.0, shadow=True)
    assert client.wait_until_matched(lambda: 1, 20.0)
    asked = []

    def answer():
        """Nothing is sent twice: the server misses what comes before it has found the sender."""
        asked.append(robot.observation())
        client.send_shadow(wire_observation.encode(asked[-1]))
        with contextlib.suppress(queue.Empty):
            return robot.take(5.0)

    chunk = wait_until(answer, 'an answer')
    assert (chunk.header.seq, chunk.status) == (asked[-1].header.seq, Status.OK)
    came = client.status(10.0).status.requests
    assert 1 <= came <= len(asked)
    assert robot.round_trip().status == Status.OK
    assert client.status(10.0).status.requests == came + 1


def test_shadow_requests_need_a_publisher_of_their_own_only_where_they_are_sent(node):
    SessionClient(node, SERVER, lifespan_s=1.0)
    assert node.count_publishers(SHADOW) == 0
    SessionClient(node, SERVER, lifespan_s=1.0, shadow=True)
    assert node.count_publishers(SHADOW) == 1


def test_it_is_wired_when_both_kinds_of_requests_are_read(node):
    client = SessionClient(node, SERVER, lifespan_s=1.0, shadow=True)
    live, shadow = queue.SimpleQueue(), queue.SimpleQueue()
    node.create_subscription(
        Observation, f'{SERVER}/observation', live.put, qos.OBSERVATION_READER, raw=True
    )
    assert not client.wait_until_matched(lambda: 1, 0.05)
    node.create_subscription(
        Observation, SHADOW, shadow.put, qos.SHADOW_OBSERVATION_READER, raw=True
    )
    assert client.wait_until_matched(lambda: 1, 20.0)
    raw = wire_observation.encode(an_observation())
    client.send_shadow(raw)
    assert shadow.get(timeout=10) == raw
    assert live.empty()
    (found,) = node.get_publishers_info_by_topic(SHADOW)
    assert found.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT


def test_the_status_is_told(server, node, wait_until):
    client = SessionClient(node, SERVER, lifespan_s=1.0)

    def active():
        try:
            reply = client.status(5.0)
        except ServerUnreachable:
            return None
        return reply if reply.status.state == ServerStatus.ACTIVE else None

    reply = wait_until(active, 'the server is active')
    assert reply.chunk_size == 30
    assert reply.status.policy.startswith('null@')


def test_an_episode_that_a_server_cannot_begin_is_told(server, node, wait_until):
    client, refusals = SessionClient(node, SERVER, lifespan_s=1.0), queue.SimpleQueue()
    request = ResetEpisodeRequest('nobody', 3, 1)

    def refused():
        """An answer that is sent before the two have fully found each other is lost."""
        client.announce(request, refusals.put)
        with contextlib.suppress(queue.Empty):
            return refusals.get(timeout=1.0)

    assert "'nobody' has no session of epoch 3" in wait_until(refused, 'a refusal')


def test_to_announce_an_episode_waits_for_nobody_and_keeps_nothing(runtime, node, wait_until):
    client, refusals = SessionClient(node, SERVER, lifespan_s=1.0), queue.SimpleQueue()
    request, name = ResetEpisodeRequest('robot'), f'{SERVER}/reset_episode'
    # nobody is there
    client.announce(request, refusals.put)
    # somebody is, and hangs: nobody spins it
    hanging = Node('hanging', context=runtime.context)
    hanging.create_service(
        ResetEpisode, name, lambda _, response: response, qos_profile=qos.SERVICES
    )
    wait_until(client._reset.service_is_ready, 'it is there')
    for _ in range(3):
        client.announce(request, refusals.put)
        assert len(client._reset._pending_requests) == 1
    hanging.destroy_node()
    assert refusals.empty()


def test_nobody_there_is_unreachable(node):
    client = SessionClient(node, SERVER, lifespan_s=1.0)
    with pytest.raises(ServerUnreachable, match='get_status: service not available'):
        client.status(0.05)


def test_its_end_leaves_nothing_on_the_node(node, wait_until):
    before = len(list(node.clients)), len(list(node.publishers))
    client = SessionClient(node, SERVER, lifespan_s=1.0, for_fleet=True, shadow=True)
    assert (len(list(node.clients)), len(list(node.publishers))) == (before[0] + 4, before[1] + 2)
    client.destroy_endpoints()
    assert (len(list(node.clients)), len(list(node.publishers))) == before
    wait_until(lambda: node.count_publishers(SHADOW) == 0, 'the publisher is gone')

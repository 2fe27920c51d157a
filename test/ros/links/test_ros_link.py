# SPDX-License-Identifier: Apache-2.0
"""What only the link over ROS 2 has: shadow requests, leases, and an end that leaves nothing."""

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
from lerobot_serve.links.fake import FakeReplies
from lerobot_serve.links.link import Presence
from lerobot_serve.links.ros.link import presence_of, RosLink
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.ros import qos
from lerobot_serve.ros.subscriptions import LivelinessStatus
from lerobot_serve_interfaces.msg import Observation
from lerobot_serve_interfaces.srv import ResetEpisode

SERVER = '/policy_server'
SHADOW = f'{SERVER}/shadow_observation'


def client_of(node: Node, *, is_shadow: bool = False) -> ServerClient:
    return ServerClient(RosLink(node, SERVER, lifespan_s=1.0, is_shadow=is_shadow), FakeReplies())


def test_a_shadow_request_is_answered_like_any_other(processes, node, wait_until):
    shape = 'joints=6,chunk=30,cameras=,fps=30'
    processes.start('policy_server', 'policy_server', policy_kind='null', policy_path=shape)
    robot = SmallClient(node, SERVER, cameras=())
    robot.open()
    client = client_of(node, is_shadow=True)
    assert client.wait_until_matched(20.0)
    asked = []

    def answer():
        """Nothing is sent twice: the server misses what comes before it has found the sender."""
        asked.append(robot.observation())
        client.send(wire_observation.encode(asked[-1]))
        with contextlib.suppress(queue.Empty):
            return robot.take(5.0)

    chunk = wait_until(answer, 'an answer')
    assert (chunk.header.seq, chunk.status) == (asked[-1].header.seq, Status.OK)
    came = client.status(10.0).status.requests
    assert 1 <= came <= len(asked)
    assert robot.round_trip().status == Status.OK
    assert client.status(10.0).status.requests == came + 1


def test_shadow_requests_have_a_topic_of_their_own_and_may_be_lost(node, wait_until):
    client, live, shadow = (
        client_of(node, is_shadow=True),
        queue.SimpleQueue(),
        queue.SimpleQueue(),
    )
    node.create_subscription(
        Observation, f'{SERVER}/observation', live.put, qos.OBSERVATION_READER, raw=True
    )
    assert not client.wait_until_matched(0.05)
    node.create_subscription(
        Observation, SHADOW, shadow.put, qos.SHADOW_OBSERVATION_READER, raw=True
    )
    assert client.wait_until_matched(20.0)
    raw = wire_observation.encode(an_observation())
    client.send(raw)
    assert shadow.get(timeout=10) == raw
    assert live.empty()
    (found,) = node.get_publishers_info_by_topic(SHADOW)
    assert found.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT


def test_to_announce_an_episode_waits_for_nobody_and_keeps_nothing(runtime, node, wait_until):
    client, refusals = client_of(node), queue.SimpleQueue()
    request, name = ResetEpisodeRequest('robot'), f'{SERVER}/reset_episode'
    # nobody is there
    client.announce(request, refusals.put)
    # somebody is, and hangs: nobody spins it
    hanging = Node('hanging', context=runtime.context)
    hanging.create_service(
        ResetEpisode, name, lambda _, response: response, qos_profile=qos.SERVICES
    )
    service = client._link._services['reset_episode']
    wait_until(service.service_is_ready, 'it is there')
    for _ in range(3):
        client.announce(request, refusals.put)
        assert len(service._pending_requests) == 1
    hanging.destroy_node()
    assert refusals.empty()


def test_nobody_there_is_unreachable(node):
    with pytest.raises(ServerUnreachable, match='get_status: service not available'):
        client_of(node).status(0.05)


def test_its_end_leaves_nothing_on_the_node(node, wait_until):
    before = len(list(node.clients)), len(list(node.publishers))
    client = client_of(node, is_shadow=True)
    assert (len(list(node.clients)), len(list(node.publishers))) == (before[0] + 4, before[1] + 1)
    client.end()
    assert (len(list(node.clients)), len(list(node.publishers))) == before
    wait_until(lambda: node.count_publishers(SHADOW) == 0, 'the publisher is gone')


@pytest.mark.parametrize(
    ('now', 'presence'),
    [
        (LivelinessStatus(1, 1, 0, 0), Presence.THERE),
        (LivelinessStatus(2, 1, 0, 0), Presence.THERE),
        (LivelinessStatus(0, -1, 1, 1), Presence.EXPIRED),
        (LivelinessStatus(0, -1, 0, 0), Presence.CLOSED),
        # it is removed when the lease of its process is over
        (LivelinessStatus(0, 0, 0, -1), None),
        # another writer of the server lives
        (LivelinessStatus(1, -1, 1, 1), None),
    ],
)
def test_a_change_of_writers_says_how_a_server_was_lost(now, presence):
    assert presence_of(now) is presence

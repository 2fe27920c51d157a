# SPDX-License-Identifier: Apache-2.0
"""A peer that sends as fast as it can, beside a robot that is driven: real processes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.ros import qos
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve.zenoh.traffic import Traffic
from lerobot_serve_interfaces.msg import ServerStatus

OBSERVATIONS, CALLS, GROWTH_MB = 3000, 2000, 50.0


@pytest.fixture
def link() -> str:
    """The test sets the link itself."""
    return 'ros'


class Replies:
    """Counts replies and refusals of calls; threads of Zenoh."""

    def __init__(self) -> None:
        self._lock, self.answered, self.refused = threading.Lock(), 0, 0

    def on_reply(self, _: bytes) -> None:
        with self._lock:
            self.answered += 1

    def on_refusal(self, text: str) -> None:
        assert 'too many calls at once' in text
        with self._lock:
            self.refused += 1

    @property
    def all(self) -> int:
        return self.answered + self.refused


@pytest.mark.slow
def test_what_floods_is_answered_or_counted_and_the_robot_is_driven_on(edge_rig):
    endpoint, statuses, replies = free_endpoint(), [], Replies()
    edge_rig.node.create_subscription(
        ServerStatus, '/policy_server/status', statuses.append, qos.STATE
    )
    edge_rig.start_server(zenoh_listen=[endpoint], status_period_s=0.05)
    edge_rig.start(link='zenoh', zenoh_connect=[endpoint])
    edge_rig.wait_for_play(30)
    edge_rig.wait(lambda: statuses and statuses[-1].memory_mb > 0, 'a status')
    before, accepted = statuses[-1], edge_rig.seen.last.chunks_accepted
    own = ServerKeys('default', '/policy_server').client(Role.ROBOT, 'flood')
    header = Header(1, 2, 3, 0, 1, MsgType.OBSERVATION)
    stranger = wire_observation.encode(
        Observation(header, 'robot_1', 'episode', np.zeros((1, 6), np.float32))
    )
    peer = ZenohLink(ZenohSettings(connect=(endpoint,)))

    def counted(reason: str) -> int:
        return sum(each.count for each in statuses[-1].dropped if each.reason == reason)

    try:
        edge_rig.wait(peer.is_connected, 'the peer is connected')
        # its queue is a link's: it waits for its uplink, so that nothing is lost before
        flood = peer.publisher(own.observation, Traffic.OBSERVATION)
        edge_rig.wait(lambda: flood.matching_status.matching, 'the server listens')
        for number in range(OBSERVATIONS):
            flood.put(b'malformed')
            flood.put(stranger)
            if number < CALLS:
                peer.call_later(
                    own.service('get_status'),
                    b'',
                    replies.on_reply,
                    replies.on_refusal,
                    timeout_s=60.0,
                    # not lost where the link is full
                    traffic=Traffic.OBSERVATION,
                )
        edge_rig.wait(lambda: replies.all == CALLS, 'each call has a reply')
        edge_rig.wait(lambda: counted('wrong_client') == OBSERVATIONS, 'each is counted')
        assert counted('encapsulation') == OBSERVATIONS, statuses[-1].dropped
        assert counted('too_many_calls') == replies.refused
        assert replies.answered
    finally:
        peer.close()
    edge_rig.wait(lambda: edge_rig.seen.last.chunks_accepted > accepted, 'the robot is driven on')
    assert statuses[-1].memory_mb - before.memory_mb < GROWTH_MB

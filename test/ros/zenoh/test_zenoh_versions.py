# SPDX-License-Identifier: Apache-2.0
"""Robots, routers and servers of another version over Zenoh: counted, and named in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.contract.session_request import session_request
from support.nodes.small_client import JOINTS
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.contract.cdr import CdrWriter
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import write_envelope_fields
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import CloseSessionRequest
from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.replies import ZenohReplyPublishers
from lerobot_serve.zenoh.server_endpoint import ServerEndpoint
from lerobot_serve.zenoh.settings import Traffic, ZenohSettings
from lerobot_serve_interfaces.msg import EdgeState

SERVER = '/other/policy_server'
SAME_VERSION = 'the same version of lerobot_serve'
LIMIT_S = 20.0


@pytest.fixture
def link() -> str:
    """Robots and servers are on Zenoh."""
    return 'zenoh'


def later(raw: bytes) -> bytes:
    """Return a message with a field of a later version before all others."""
    return raw[:4] + b'\xff' * 8 + raw[4:]


class OtherServer:
    """A server in the test's process; `is_later` when its messages have another layout."""

    def __init__(self) -> None:
        self.endpoint = free_endpoint()
        self.is_later = True
        self.link = ZenohLink(ZenohSettings(listen=(self.endpoint,)))
        keys = ServerKeys('default', SERVER)
        self.replies = ZenohReplyPublishers(self.link, keys)
        self.requests: list[bytes] = []
        self.topic = ''
        self._served = ServerEndpoint(
            self.link,
            SERVER,
            {'open_session': self._open, 'close_session': lambda _, response: response},
            self,
            run=lambda work: asyncio.run(work()),
            on_observation=self._on_observation,
            on_drop=self.requests.append,
        )

    def _open(self, request, response):
        self.topic = request.reply_topic
        self.replies.open(self.topic)
        response.accepted, response.schema_version = True, SCHEMA_VERSION
        response.policy, response.chunk_size = 'other@1', 30
        response.observation_steps = response.observation_stride_steps = 1
        return response

    def _on_observation(self, raw: bytes) -> None:
        self.requests.append(raw)
        self.replies.send(self.topic, later(raw))

    def publish_status(self) -> None:
        self._served.publish_status(later(b'\0\1\0\0'))

    def __getattr__(self, name: str):
        return getattr(service_bytes, name)

    def encode(self, message: object) -> bytes:
        raw = service_bytes.encode(message)
        return later(raw) if self.is_later else raw

    def close(self) -> None:
        self._served.close()
        self.replies.close()
        self.link.close()


@pytest.fixture
def other() -> Iterator[OtherServer]:
    server = OtherServer()
    yield server
    server.close()


def test_a_server_refuses_and_counts_what_it_cannot_read(rig, log_of_rig):
    rig.start(policy_kind='steered')
    robot = rig.client()
    link = rig.fleet.links.link(rig.name)
    keys = ServerKeys('default', rig.name).client(Role.ROBOT, 'later')
    ask = session_request('later', 1, keys.reply(1), JOINTS, instance=9)
    for service, raw in (
        ('open_session', encode(ask)),
        ('close_session', encode(CloseSessionRequest('later', 1))),
    ):
        with pytest.raises(ServerUnreachable, match=SAME_VERSION):
            link.call(keys.service(service), later(raw), LIMIT_S)
    rig.wait_for_drop('malformed_service_request', 2)
    words = "refused a call of 'robot later' over Zenoh: open_session: the request cannot be read"
    rig.wait(lambda: words in log_of_rig('policy_server'), 'the refusal is in the log')
    before = sum(rig.drops().values())
    link.put(
        keys.observation, later(wire_observation.encode(robot.observation())), Traffic.OBSERVATION
    )
    rig.wait(lambda: sum(rig.drops().values()) == before + 1, 'the request is counted')
    with pytest.raises(SessionRefused) as refused:
        rig.client('newer', schema_version=SCHEMA_VERSION + 1)
    assert refused.value.code == Refusal.SCHEMA_TOO_NEW
    assert rig.drops()['refused_schema_too_new'] >= 1
    assert robot.round_trip().status == Status.OK


def test_no_query_ends_a_server(rig, log_of_rig):
    rig.start(policy_kind='steered')
    robot = rig.client()
    link = rig.fleet.links.link(rig.name)
    at = ServerKeys('default', rig.name)
    writer, seen = CdrWriter(), robot.observation()
    write_envelope_fields(writer, seen.header, seen.client_id, seen.episode_id)
    envelope = writer.finish()
    keys = at.client(Role.ROBOT, seen.client_id)
    with pytest.raises(ServerUnreachable, match=r'byte \d+ is needed'):
        link.call(keys.service('predict_chunk'), envelope, LIMIT_S)
    # a selector that names no client
    for payload in (b'', envelope):
        with pytest.raises(ServerUnreachable):
            link.call(f'{at.prefix}/**', payload, LIMIT_S)
    assert robot.round_trip().status == Status.OK
    assert 'Traceback' not in log_of_rig('policy_server')


def test_a_robot_names_a_server_of_another_version(edge_rig, other):
    edge_rig.start(servers=[SERVER], link='zenoh', zenoh_connect=[other.endpoint])
    state = edge_rig.wait_for_state(
        EdgeState.RECONNECTING, EdgeState.CONNECTING, reason=SAME_VERSION
    )
    assert 'open_session: the reply cannot be read' in state.reason
    # a server whose chunks alone have another layout
    other.is_later = False
    edge_rig.wait(lambda: other.requests, 'a request arrives')
    words = 'consecutive requests); a reply cannot be read'
    edge_rig.wait(lambda: words in edge_rig.log(), 'the log names it')
    assert SAME_VERSION in edge_rig.log().partition(words)[2]
    drops = edge_rig.seen.drops()
    assert drops['request_timeout'] and drops['oversized']
    assert 'Traceback' not in edge_rig.log()
    assert not edge_rig.seen.played


def test_a_router_names_a_server_of_another_version(router_rig, other):
    router_rig.fleet.start(
        'router',
        'policy_router',
        slot_prod=[f'zenoh:{SERVER}'],
        zenoh_connect=[other.endpoint],
        discovery_timeout_s=0.1,
    )

    def replica_text() -> str:
        other.publish_status()
        state = router_rig.state
        return state.slots[0].replicas[0].text if state and state.slots else ''

    router_rig.wait(lambda: SAME_VERSION in replica_text(), 'the reason is in the state')
    assert 'its status cannot be read' in replica_text()
    assert router_rig.drops()['malformed_status'] >= 1
    assert 'Traceback' not in router_rig.log('router')

# SPDX-License-Identifier: Apache-2.0
"""Messages of another layout: replies that decode to something, or to nothing; never a crash."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as some
import pytest
from support.contract.session_request import session_request
from support.edge.edge_transport_rig import ROBOT
from support.zenoh.fuzzing import altered, fuzz

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import (
    CameraSpec,
    DropCount,
    Extension,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
    ServerStatus,
)
from lerobot_serve.contract.services.messages import read
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.session.request import check_agreement
from lerobot_serve.edge.session.transport.policy_server_transport import PolicyServerTransport
from lerobot_serve.links.fake import FakeLink, FakeReplies
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.router.replicas.replica import is_serving

JOINTS = tuple(f'joint_{i}.pos' for i in range(6))
RESPONSE = encode(
    OpenSessionResponse(
        accepted=True,
        schema_version=1,
        session_epoch=7,
        session_id='robot_1#00000007',
        observation_topic='/policy_server/observation',
        policy='act@1',
        policy_type='act',
        state_names=JOINTS,
        action_names=JOINTS,
        cameras=(CameraSpec('front', 480, 640, 3),),
        chunk_size=50,
        trained_fps=30.0,
        observation_steps=1,
        observation_stride_steps=1,
        warnings=('a note',),
        extensions=(Extension('k', b'v'),),
    )
)
STATUS = encode(
    ServerStatus(
        server='/policy_server',
        policy='act@1',
        state=ServerStatus.State.ACTIVE,
        warmed_up=True,
        text='a text',
        dropped=(DropCount('late', 3),),
    )
)


def client_of_server(raw: bytes) -> ServerClient:
    services = ('open_session', 'reset_episode', 'get_status')
    return ServerClient(FakeLink(dict.fromkeys(services, lambda _: raw)), FakeReplies())


def transport(client: ServerClient) -> PolicyServerTransport:
    """Return the transport of an edge to this server."""

    def request(epoch: int) -> OpenSessionRequest:
        return session_request('robot_1', epoch, '', JOINTS)

    log = SimpleNamespace(info=lambda text: None, warning=lambda text: None)
    return PolicyServerTransport(
        {'a': client}, ROBOT, session_request=request, rate_warnings=lambda size: [], logs=log
    )


@fuzz(250)
@given(altered(RESPONSE))
def test_a_robot_opens_a_session_or_has_a_reason(raw):
    try:
        check_agreement(transport(client_of_server(raw)).open_session('a', 7))
    except (SessionRefused, ServerUnreachable) as error:
        assert str(error)


@fuzz(150)
@given(altered(STATUS))
def test_a_router_reads_a_status_or_refuses_it(raw):
    try:
        status = read(ServerStatus, raw)
    except ValueError as error:
        assert 'are no ServerStatus' in str(error)
        return
    assert isinstance(status.policy, str)
    is_serving(status)


@fuzz(150)
@given(some.sampled_from([RESPONSE, STATUS, b'']).flatmap(altered))
def test_no_reply_to_a_call_without_waiting_raises(raw):
    client, refused = client_of_server(raw), []
    client.announce(ResetEpisodeRequest(), refused.append)
    client.probe(lambda: None)
    assert all(isinstance(text, str) for text in refused)


def test_a_changed_layout_is_named_with_its_remedy():
    """A field of a later version before all others."""
    raw = RESPONSE[:4] + b'\x01\x00\x00\x00\xff\xff\xff\xff' + RESPONSE[4:]
    with pytest.raises(ServerUnreachable, match=r'cannot be read.*the same version') as refused:
        client_of_server(raw).status(1.0)
    assert '/policy_server, get_status: ' in str(refused.value)

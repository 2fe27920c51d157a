# SPDX-License-Identifier: Apache-2.0
"""Tokens, TLS and addresses of the doors that speak gRPC."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pytest
from support.gateway.certificates import certificate_files
from support.gateway.gateway_rig import exposure_of
from support.gateway.policy_service_rig import observation, policy_service_rig
from support.gateway.robot_client_rig import robot_client_rig

from lerobot_serve.contract.services.policy_service import SERVICE
from lerobot_serve.gateway.grpc_server.contexts import address_of

pytestmark = pytest.mark.usefixtures('grpc_thread')
TOKEN = 'a-token-of-sixteen-or-more'


@pytest.fixture
def tokens(tmp_path) -> str:
    file = tmp_path / 'tokens'
    file.touch(0o600)
    file.write_text(f'arm {TOKEN}\n')
    return str(file)


async def test_a_robot_client_needs_its_token(tokens):
    async with robot_client_rig(exposure_of('lerobot', tokens_file=tokens)) as rig:
        for wrong, said in (('', 'no token'), ('x' * 20, 'a wrong token')):
            client = rig.client(token=wrong)
            for call in (client.call('Ready'), client.instruct(b''), client.actions_call()):
                code, text = await client.refused(call)
                assert code.name == 'UNAUTHENTICATED'
                assert said in text
                assert 'lerobot.tokens_file' in text
        right = rig.client(token=TOKEN)
        await right.start()
        assert rig.refused == {'unauthorized': 6}
        (caller,) = rig.door.clients._clients
        assert caller.name == 'arm'


async def test_policy_service_needs_its_token(tokens):
    bearer = (('authorization', f'Bearer {TOKEN}'), ('client-name', 'left'))
    async with policy_service_rig(exposure_of('policy_service', tokens_file=tokens)) as rig:
        channel = rig.channel()
        assert (await rig.refusal(rig.call(channel, observation())))[0] == 'UNAUTHENTICATED'
        stream = rig.stream(channel)
        # the refusal may be faster than the message
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stream.write(observation())
        assert (await stream.code()).name == 'UNAUTHENTICATED'
        await rig.predict(channel, observation(), metadata=bearer)
        who = rig.upstream.requests[0][0]
        assert who.startswith('gateway/policy_service/arm/left@127.0.0.1:')


@pytest.mark.parametrize('method', ['Predict', 'PredictStream', 'Describe'])
async def test_a_call_without_a_token_takes_no_place(tokens, method):
    async with policy_service_rig(exposure_of('policy_service', tokens_file=tokens)) as rig:
        # no message is awaited for the refusal
        call = rig.channel().stream_stream(f'/{SERVICE}/{method}')()
        assert (await call.code()).name == 'UNAUTHENTICATED'
        assert rig.refused == {'unauthorized': 1}


async def test_tls_is_required_where_it_is_set(tmp_path):
    files = certificate_files(tmp_path)
    authority = Path(files[0]).read_bytes()
    async with robot_client_rig(exposure_of('lerobot', files)) as rig:
        code, _ = await rig.client().refused(rig.client().call('Ready'))
        assert code.name == 'UNAVAILABLE'
        await rig.client(certificate=authority).start()
    async with policy_service_rig(exposure_of('policy_service', files)) as rig:
        plain = rig.call(rig.channel(), observation())
        assert (await rig.refusal(plain))[0] == 'UNAVAILABLE'
        assert not rig.upstream.opened
        channel = rig.channel(authority)
        assert (await rig.predict(channel, observation())).chunk_steps == 4


@pytest.mark.parametrize(
    ('peer', 'address'),
    [
        ('ipv4:127.0.0.1:5000', '127.0.0.1:5000'),
        ('ipv6:%5B::1%5D:5000', '[::1]:5000'),
        ('unix:', 'unix:'),
    ],
)
def test_the_address_of_a_peer(peer, address):
    assert address_of(peer) == address

# SPDX-License-Identifier: Apache-2.0
"""The door for openpi's client over real sockets: its protocol, its refusals, its bounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
import socket
import ssl

import aiohttp
import numpy as np
import pytest
from support.gateway.certificates import certificate_files
from support.gateway.gateway_rig import CAMERA, exposure_of, rig_tests, until
from support.gateway.openpi_messages import packed, unpacked
from support.gateway.openpi_rig import MAPPING, observation, OpenpiRig
from support.gateway.websocket_frames import masked

from benchmarks.gateways.wire_requests import UPGRADE
from lerobot_serve.access.token_file import Tokens
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.episode_names import scoped_name
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.openpi.frames import Opcode

TOKEN = 'a-token-of-kim-for-tests'
WITH_TOKENS = {'tokens': Tokens({'kim': TOKEN})}


openpi_test = rig_tests(OpenpiRig)


@openpi_test()
async def test_the_unmodified_client_is_served(rig):
    async with rig.unmodified_client() as policy:
        reply = await asyncio.to_thread(policy.infer, observation())
        assert reply['actions'].tolist() == [[i, i + 1, i + 2] for i in range(4)]
        assert reply['server_timing']['infer_ms'] == 1.5
        with pytest.raises(RuntimeError, match='state has 2 values'):
            wrong = {'observation/state': np.zeros(2)}
            await asyncio.to_thread(policy.infer, observation(**wrong))
        assert 'actions' in await asyncio.to_thread(policy.infer, observation())
        assert policy.get_server_metadata()['lerobot_serve']['note'] == NO_CAGE


NO_STATE = MAPPING.replace('state: [observation/state]\n', '')


@openpi_test(mapping=NO_STATE)
async def test_the_unmodified_client_sends_the_vector_of_lerobot_without_a_mapping_of_it(rig):
    for key in ('observation.state', 'state'):
        async with rig.unmodified_client() as policy:
            for vector in (np.float32([3, 2, 1]), np.float64([[3, 2, 1]])):
                asked = with_state({key: vector})
                assert 'actions' in await asyncio.to_thread(policy.infer, asked)
                assert rig.upstream.requests[-1][1].state.tolist() == [3, 2, 1]
            rig.upstream.requests.clear()
            for state, text in (
                ({key: np.zeros(2)}, 'state has 2 values, the policy takes 3: joint_1.pos'),
                ({key: np.float32([0, np.nan, 0])}, r'invalid: state\[1\] is nan'),
                ({}, f'the state lacks {key}'),
            ):
                with pytest.raises(RuntimeError, match=text):
                    await asyncio.to_thread(policy.infer, with_state(state))
            assert not rig.upstream.requests


def with_state(state):
    """Return an observation with these values as its state."""
    return {k: v for k, v in observation().items() if k != 'observation/state'} | state


@openpi_test()
async def test_a_grey_picture_is_not_called_missing(rig):
    async with rig.client() as client:
        grey = observation(**{'observation/image': np.zeros((4, 6), np.uint8)})
        assert 'must have 3 dimensions, got the shape (4, 6)' in await client.infer(grey)


@openpi_test(mapping=NO_STATE)
async def test_a_vector_beside_other_numbers_is_refused(rig):
    for other in ('state', 'joint_1.pos', 'timestamp'):
        async with rig.client() as client:
            text = await client.infer(with_state({'observation.state': np.ones(3), other: 1.0}))
            assert 'send observation.state without other numbers' in text, text
    assert not rig.upstream.requests


@openpi_test(mapping=NO_STATE)
async def test_a_vector_is_not_read_in_another_order_than_that_of_the_handshake(rig):
    for has_asked in (False, True):
        rig.upstream.contract = EXAMPLE_CONTRACT
        async with rig.client() as client:
            if has_asked:
                assert 'actions' in await client.infer(with_state({'state': np.ones(3)}))
            rig.upstream.contract = replace(REVERSED, action_names=EXAMPLE_CONTRACT.action_names)
            text = await client.infer(with_state({'state': np.ones(3)}))
            assert 'the policy was replaced: its state were' in text, text


@openpi_test(exposure=WITH_TOKENS)
async def test_the_unmodified_client_has_an_api_key(rig):
    async with rig.unmodified_client(TOKEN):
        assert rig.gateway.callers[0].name == 'kim'
    with pytest.raises(Exception, match='401'):
        async with rig.unmodified_client('x' * 20):
            pass


@openpi_test()
async def test_metadata_comes_first(rig):
    async with rig.client() as client:
        ours = client.metadata['lerobot_serve']
        assert ours['note'] == NO_CAGE and ours['fingerprint'] == EXAMPLE_CONTRACT.fingerprint
        assert ours['action_names'] == list(EXAMPLE_CONTRACT.action_names)
        assert client.metadata['reset_pose'] == [1, 2]


@openpi_test()
async def test_a_request_arrives_in_the_names_of_the_policy(rig):
    async with rig.client() as client:
        reply = await client.infer(observation())
    client_id, asked = rig.upstream.requests[0]
    assert client_id.startswith('gateway/openpi/127.0.0.1:')
    assert asked.state.tolist() == [0, 1, 2] and asked.task == 'pick' and asked.episode_start
    assert [image.max() for image in asked.images.values()] == [7]
    assert reply['lerobot_serve']['slot'] == 'prod' and reply['actions'].dtype == np.float32


async def handshake_refusal(rig, **options) -> aiohttp.WSServerHandshakeError:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with rig.client(**options):
            pass
    return refused.value


WRONG_MAPPING = 'state: [observation/state]\nactions: {arm: [gripper.pos, joint_1.pos]}'


@pytest.mark.parametrize(
    ('options', 'headers', 'status', 'reason'),
    [
        ({'mapping': WRONG_MAPPING}, {}, 409, 'invalid'),
        ({'exposure': WITH_TOKENS}, {}, 401, 'unauthorized'),
        ({'exposure': WITH_TOKENS}, {'Authorization': f'Api-Key {TOKEN}x'}, 401, 'unauthorized'),
        ({'exposure': WITH_TOKENS}, {'Authorization': TOKEN}, 401, 'unauthorized'),
        ({}, {'Origin': 'http://evil.example'}, 403, 'web_page'),
        ({}, {'Host': 'evil.example'}, 403, 'web_page'),
    ],
)
async def test_who_may_not_connect_is_refused_at_the_handshake(
    tmp_path, options, headers, status, reason
):
    async with OpenpiRig(tmp_path, **options).running() as rig:
        assert (await handshake_refusal(rig, headers=headers)).status == status
        assert rig.refused == {reason: 1}
        assert not rig.upstream.open_sessions
        missing = any('missing: joint_2.pos' in line for line in rig.log.lines)
        assert missing == ('mapping' in options)


@pytest.mark.parametrize('options', [{'max_connections': 1}, {'gateway': {'max_callers': 1}}])
async def test_more_clients_than_allowed_are_refused(tmp_path, options):
    async with OpenpiRig(tmp_path, **options).running() as rig, rig.client():
        refused = await handshake_refusal(rig)
        assert refused.status == 429 and refused.headers['Retry-After'] == '1'


@openpi_test()
async def test_each_connection_has_a_session_that_ends_with_it(rig):
    async with rig.client() as one, rig.client() as two:
        await one.infer(observation())
        await two.infer(observation())
        assert len(rig.upstream.open_sessions) == 2
    await until(lambda: not rig.upstream.open_sessions)
    assert len({client_id for client_id, _ in rig.upstream.requests}) == 2


@openpi_test()
async def test_a_refusal_is_text_and_the_connection_stays(rig):
    async with rig.client() as client:
        rig.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no server', 2.0)
        assert await client.infer(observation()) == 'unavailable: no server; retry after 2 s'
        rig.upstream.fail_with = None
        await client.socket.send_str('hello')
        assert 'binary' in (await client.socket.receive_str())
        await client.socket.send_bytes(b'\xc1')
        assert 'cannot be read' in (await client.socket.receive_str())
        assert 'actions' in await client.infer(observation())
    assert rig.refused['malformed'] == 2


@openpi_test()
async def test_a_reset_begins_an_episode(rig):
    async with rig.client() as client:
        await client.infer(observation())
        await client.infer(observation(endpoint='infer'))
        assert await client.infer({'endpoint': 'reset'}) == 'reset successful'
        await client.infer(observation(session_id='e2'))
    asked = [request for _, request in rig.upstream.requests]
    assert [each.episode_start for each in asked] == [True, False, True]
    assert asked[-1].episode_id == scoped_name('127.0.0.1/', 'e2')


@openpi_test(mapping=MAPPING.replace('openpi: {', 'openpi: {new_episode: task, '))
async def test_an_observation_that_fails_leaves_the_start_of_its_episode_to_the_next_one(rig):
    wrong = {'observation/state': np.full(3, np.nan)}
    async with rig.client() as client:
        await client.infer(observation())
        for begin in ({'prompt': 'place'}, {'prompt': 'place', 'session_id': 'e2'}):
            assert 'state[0] is nan' in await client.infer(observation(**begin | wrong))
            rig.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no server')
            assert 'no server' in await client.infer(observation(**begin))
            rig.upstream.fail_with = None
            await client.infer(observation(**begin))
            await client.infer(observation(**begin))
        await client.infer({'endpoint': 'reset'})
        assert 'state[0] is nan' in await client.infer(observation(**begin | wrong))
        await client.infer(observation(**begin))
    asked = [request.episode_start for _, request in rig.upstream.requests]
    assert asked == [True, *2 * (True, True, False), True]


BY_NAME = f"""
cameras: {{observation/image: {CAMERA}}}
actions: {{arm: [joint_1.pos, joint_2.pos], gripper: gripper.pos}}
"""
REVERSED = replace(
    EXAMPLE_CONTRACT,
    state_names=EXAMPLE_CONTRACT.state_names[::-1],
    action_names=EXAMPLE_CONTRACT.action_names[::-1],
)


@openpi_test(mapping=BY_NAME)
async def test_named_values_keep_their_meaning_when_the_policy_is_replaced(rig):
    named = observation(**{name: i for i, name in enumerate(EXAMPLE_CONTRACT.state_names)})
    del named['observation/state']
    async with rig.client() as client:
        rig.upstream.hold()
        await client.socket.send_bytes(packed(named))
        await until(lambda: rig.upstream.requests)
        # before the reply, whose actions are in its order
        rig.upstream.contract = REVERSED
        rig.upstream.actions = lambda request: np.float32([[30, 20, 10]])
        rig.upstream.release()
        replies = [unpacked(await client.socket.receive_bytes()), await client.infer(named)]
        for reply in replies:
            assert (reply['arm'].tolist(), reply['gripper'].tolist()) == ([[10, 20]], [[30]])
    states = [asked.state.tolist() for _, asked in rig.upstream.requests]
    assert states == [[0, 1, 2], [2, 1, 0]]


@openpi_test()
async def test_a_client_that_knows_an_order_alone_is_not_served_in_another_one(rig):
    async with rig.client() as client:
        rig.upstream.contract = REVERSED
        for _ in range(2):
            text = await client.infer(observation())
            assert text.startswith('invalid: the policy was replaced') and 'restart it' in text
        assert not rig.upstream.requests
    async with rig.client() as client:
        assert client.metadata['lerobot_serve']['action_names'] == list(REVERSED.action_names)
        assert 'actions' in await client.infer(observation())


@openpi_test(max_connections=2)
async def test_connections_above_the_limit_are_refused_whatever_they_ask(rig):
    url = rig.door.address.replace('ws', 'http', 1)
    async with rig.client(), rig.client(), aiohttp.ClientSession() as session:
        async with session.get(f'{url}/healthz') as reply:
            assert reply.status == 429 and '3 connections are open' in await reply.text()
        assert rig.refused == {'max_connections': 1}


@openpi_test(max_connections=2, exposure=WITH_TOKENS)
async def test_connections_without_a_token_keep_no_place(rig):
    others = [await asyncio.open_connection(*rig.host_and_port) for _ in range(2)]
    async with rig.client(headers={'Authorization': f'Api-Key {TOKEN}'}) as client:
        assert await others[0][0].read() == b''
        assert rig.refused == {'gave_way': 1}
        reader, writer = others[1]
        writer.write(b'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
        # the connection ends with the reply
        assert (await reader.read()).endswith(b'OK\n')
        assert 'actions' in await client.infer(observation())
    for _, writer in others:
        writer.close()


@openpi_test()
async def test_health_and_what_is_no_websocket(rig):
    url = rig.door.address.replace('ws', 'http', 1)
    async with aiohttp.ClientSession() as session:
        async with session.get(f'{url}/healthz') as reply:
            assert (reply.status, await reply.text()) == (200, 'OK\n')
        async with session.get(url) as reply:
            assert reply.status == 426 and 'websocket' in await reply.text()
    assert not rig.upstream.opened


@openpi_test(max_message_mb=0.02)
async def test_a_large_message_is_refused_before_it_is_read(rig):
    reader, writer = await rig.raw()
    # of 4 GiB, of which nothing follows
    writer.write(bytes((0x82, 0xFF)) + (1 << 32).to_bytes(8, 'big') + bytes(4))
    closing = await reader.read()
    assert closing[0] == 0x88 and int.from_bytes(closing[2:4], 'big') == 1009
    assert b'20000 are allowed' in closing
    assert rig.refused == {'too_big': 1}
    await until(lambda: not rig.upstream.open_sessions)
    writer.close()


@openpi_test(read_timeout_s=3.0)
async def test_a_message_that_does_not_end_is_given_up(rig):
    reader, writer = await rig.raw()
    whole = masked(packed(observation()))
    writer.write(whole[: len(whole) // 2])
    connection = next(iter(rig.door._open))
    await until(lambda: connection._begun_s is not None)
    for _ in range(4):
        rig.now_s += 1.0
        writer.write(b'x')
        await writer.drain()
    rig.door.check_connections()
    with pytest.raises(ConnectionError):
        assert await reader.read() == b''
        raise ConnectionResetError
    assert rig.refused == {'slow': 1}
    writer.close()


@openpi_test(ping_interval_s=5.0)
async def test_a_silent_client_is_asked_and_then_disconnected(rig):
    reader, writer = await rig.raw()
    rig.now_s += 6.0
    rig.door.check_connections()
    assert await reader.readexactly(2) == bytes((0x89, 0))
    writer.write(masked(b'', Opcode.PONG))
    await writer.drain()
    connection = next(iter(rig.door._open))
    await until(lambda: connection._heard_s == rig.now_s)
    rig.now_s += 9.0
    rig.door.check_connections()
    assert not rig.refused
    rig.now_s += 2.0
    # by the door itself, which checks each CHECK_S
    await until(lambda: rig.refused)
    assert rig.refused == {'silent': 1}
    await until(lambda: not rig.upstream.open_sessions)
    writer.close()


@openpi_test(write_timeout_s=0.2)
async def test_a_client_that_stops_reading_is_disconnected(rig):
    # replies that no socket buffers
    rig.upstream.actions = lambda request: np.zeros((200_000, 3), np.float32)
    with socket.create_connection(rig.host_and_port) as deaf:
        deaf.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=deaf)
        writer.transport.set_write_buffer_limits(high=1 << 24)
        writer.write(UPGRADE)
        await reader.readuntil(b'\r\n\r\n')
        writer.transport.pause_reading()
        for _ in range(20):
            writer.write(masked(packed(observation())))
        await until(lambda: rig.refused.get('stopped_reading'))
        await until(lambda: not rig.upstream.open_sessions)
        assert len(rig.upstream.requests) < 20
        writer.close()


@openpi_test()
async def test_a_client_that_leaves_while_its_session_opens_leaves_none(rig):
    go_on = rig.opens_later()
    reader, writer = await rig.raw_request()
    await until(lambda: rig.gateway.callers)
    writer.transport.abort()
    await until(lambda: not rig.gateway.callers)
    go_on.set()
    await until(lambda: rig.upstream.opened and not rig.upstream.open_sessions)
    del reader


@openpi_test(gateway={'request_timeout_s': 0.02})
async def test_a_client_whose_session_opens_too_slowly_leaves_none(rig):
    go_on = rig.opens_later()
    # refused at once, not when the server has answered
    assert (await handshake_refusal(rig)).status == 503
    assert rig.refused['slow_opening'] == 1
    assert not rig.gateway.callers
    go_on.set()
    await until(lambda: rig.upstream.opened and not rig.upstream.open_sessions)


@openpi_test()
async def test_the_end_of_the_door_ends_its_connections(rig):
    async with rig.client() as client:
        stopping = asyncio.create_task(rig.door.stop())
        answer = await client.socket.receive()
        assert answer.type is aiohttp.WSMsgType.CLOSE and answer.data == 1001
        await stopping
        await rig.door.stop()
    assert not rig.upstream.open_sessions


@openpi_test()
async def test_a_reply_in_work_is_sent_before_the_end(rig):
    rig.upstream.hold()
    async with rig.client() as client:
        await client.socket.send_bytes(packed(observation()))
        await until(lambda: rig.upstream.requests)
        stopping = asyncio.create_task(rig.door.stop())
        await until(lambda: next(iter(rig.door._open))._last)
        rig.upstream.release()
        assert (await client.socket.receive()).type is aiohttp.WSMsgType.BINARY
        assert (await client.socket.receive()).data == 1001
        await stopping


async def test_tls(tmp_path):
    files = certificate_files(tmp_path)
    exposure = exposure_of('openpi', files)
    async with OpenpiRig(tmp_path, {'tls': exposure.tls}).running() as rig:
        assert rig.door.address.startswith('wss://')
        async with rig.client(ssl=ssl.create_default_context(cafile=files[0])) as client:
            assert 'actions' in await client.infer(observation())
        plain = rig.door.address.replace('wss', 'ws')
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.ws_connect(plain)

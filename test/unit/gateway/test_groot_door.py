# SPDX-License-Identifier: Apache-2.0
"""The door for GR00T's client over real sockets: its endpoints, its refusals, and other bytes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
import random

import msgpack
import numpy as np
import pytest
from support.gateway.groot_client import GrootClient, observation
from support.gateway.groot_rig import client_of, EXPOSURE, running
from support.policies.remote_peers import pack_npy
import zmq

from lerobot_serve.access.token_file import Tokens
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.groot import door

MAPPING = """
cameras: {ego_view: observation.images.front, depth: null}
state: [arm, hand]
actions: {hand: gripper.pos, arm: [joint_1.pos, joint_2.pos]}
"""


async def error_of(client: GrootClient, *arguments: object) -> str:
    with pytest.raises(RuntimeError) as error:
        await asyncio.to_thread(client.call, *arguments)
    return str(error.value)


async def test_a_client_gets_its_actions_in_the_names_of_the_policy():
    async with running() as rig, client_of(rig) as client:
        ping = await asyncio.to_thread(client.call, 'ping')
        assert ping['status'] == 'ok' and NO_CAGE in ping['message']
        action, info = await asyncio.to_thread(client.get_action, observation())
        assert list(action) == ['actions']
        assert action['actions'].dtype == np.float32
        assert action['actions'].tolist() == [[[i, 1 + i, 2 + i] for i in range(4)]]
        assert info['fingerprint'] == 'fake@0123456789ab' and info['note'] == NO_CAGE
        ((who, asked),) = rig.upstream.requests
        assert who.startswith('gateway/groot/127.0.0.1:')
        assert asked.state.tolist() == [0, 1, 2] and asked.task == 'lift the cube'
        assert asked.images['observation.images.front'].shape == (48, 64, 3)
        assert not asked.episode_start


@pytest.mark.parametrize('fields', ['as_json', 'as_dict'])
async def test_the_modality_config_is_read_by_clients_of_both_versions(fields):
    async with running() as rig, client_of(rig, fields=fields) as client:
        config = await asyncio.to_thread(client.call, 'get_modality_config')
        assert config['video'].modality_keys == ['front']
        assert config['video'].delta_indices == config['state'].delta_indices == [0]
        assert config['state'].modality_keys == ['joint_1.pos', 'joint_2.pos', 'gripper.pos']
        assert config['action'].delta_indices == [0, 1, 2, 3]
        assert config['language'].modality_keys == ['annotation.human.task_description']


async def test_a_mapping_names_cameras_state_and_actions(tmp_path: Path):
    file = tmp_path / 'mapping.yaml'
    file.write_text(MAPPING)
    async with running(mapping=str(file)) as rig, client_of(rig) as client:
        config = await asyncio.to_thread(client.call, 'get_modality_config')
        assert config['video'].modality_keys == ['ego_view']
        assert config['state'].modality_keys == ['arm', 'hand']
        assert config['action'].modality_keys == ['hand', 'arm']
        theirs = {
            'video': {'ego_view': np.zeros((1, 1, 48, 64, 3), np.uint8)},
            'state': {
                'hand': np.full((1, 1, 1), 9, np.float32),
                'arm': np.array([[[3, 4]]], np.float32),
            },
            'language': {},
        }
        action, _ = await asyncio.to_thread(client.get_action, theirs)
        assert action['hand'][0, :2].tolist() == [[9], [10]]
        assert action['arm'][0, :2].tolist() == [[3, 4], [4, 5]]


async def test_reset_may_name_the_episode():
    async with running() as rig, client_of(rig) as client:
        options = {'options': {'episode_id': 'ep_7'}}
        await asyncio.to_thread(client.call, 'reset', options)
        for _ in range(2):
            await asyncio.to_thread(client.get_action, observation())
        asked = [(r.episode_start, r.episode_id[:5]) for _, r in rig.upstream.requests]
        assert asked == [(True, 'ep_7~'), (False, '')]
        for bad in ('x' * 10_000, 'a\nb'):
            options = {'options': {'episode_id': bad}}
            assert 'printable text' in await error_of(client, 'reset', options)


async def test_clients_with_long_ids_that_begin_alike_have_sessions_of_their_own():
    async with running() as rig, client_of(rig) as first, client_of(rig) as second:
        for number, client in enumerate((first, second)):
            client.socket.setsockopt(zmq.IDENTITY, b'robot_in_the_kitchen_%d' % number)
            client.socket.disconnect(rig.door.address)
            client.socket.connect(rig.door.address)
            await asyncio.to_thread(client.get_action, observation())
        assert rig.upstream.opened == 2


async def test_reset_begins_an_episode_and_each_client_has_its_own():
    async with running() as rig, client_of(rig) as first, client_of(rig) as second:
        for client in (first, second):
            await asyncio.to_thread(client.get_action, observation())
        reply = await asyncio.to_thread(first.call, 'reset', {'options': None})
        assert reply == {'note': NO_CAGE}
        for client in (first, second, first):
            await asyncio.to_thread(client.get_action, observation(), {'episode_id': 'ep_1'})
        starts = [asked.episode_start for _, asked in rig.upstream.requests]
        assert starts == [False, False, True, False, False]
        assert rig.upstream.requests[-1][1].episode_id.startswith('ep_1~')
        assert rig.upstream.opened == 2


async def test_a_client_that_waits_does_not_hold_back_another():
    async with running() as rig, client_of(rig) as slow, client_of(rig) as quick:
        rig.upstream.hold()
        waiting = asyncio.create_task(asyncio.to_thread(slow.get_action, observation()))
        while not rig.upstream.requests:
            await asyncio.sleep(0.001)
        assert (await asyncio.to_thread(quick.call, 'ping'))['status'] == 'ok'
        rig.upstream.release()
        assert (await waiting)[0]['actions'].shape == (1, 4, 3)


def changed(modality: str, key: str, value: object) -> dict[str, object]:
    given = observation()
    return {**given, modality: {**given[modality], key: value}}


FRONT = np.zeros((1, 1, 48, 64, 3), np.uint8)
MISTAKES = [
    (changed('video', 'front', np.concatenate([FRONT, FRONT])), 'has a batch of 2'),
    (changed('video', 'front', np.concatenate([FRONT, FRONT], 1)), 'has 2 time steps'),
    (changed('video', 'front', FRONT[0]), 'must be B x T x height'),
    (changed('video', 'front', FRONT.astype(np.float32)), 'must be of uint8'),
    (changed('video', 'side', FRONT), "no camera 'side', only observation.images.front"),
    (changed('state', 'joint_1.pos', [[[1.0]]]), 'must be an array'),
    (changed('state', 'joint_1.pos', np.full((1, 1, 1), np.nan, np.float32)), 'state[0] is nan'),
    (changed('state', 'joint_1.pos', np.zeros((1, 1, 2), np.float32)), 'state has 4 values'),
    (changed('state', 'joint_9.pos', np.zeros((1, 1, 1), np.float32)), 'no state joint_9.pos'),
    (changed('language', 'annotation.human.task_description', ['lift']), 'must be'),
    (changed('language', 'other', [['lift']]), 'must have one key'),
    ({'video.front': FRONT, 'state.arm': FRONT}, 'older GR00T'),
    ({'video': [FRONT]}, 'video must be a map'),
    ({}, 'lacks joint_1.pos'),
    (None, 'needs data with an observation'),
]


async def test_mistakes_are_answered_with_a_sentence_and_the_client_goes_on():
    async with running() as rig, client_of(rig) as client:
        for given, text in MISTAKES:
            found = await error_of(client, 'get_action', {'observation': given})
            assert text in found and '\n' not in found
        data = {'observation': observation(), 'options': {'speed': 2}}
        assert 'allowed are episode_id' in await error_of(client, 'get_action', data)
        assert not rig.upstream.requests
        await asyncio.to_thread(client.get_action, observation())


async def test_kill_and_unknown_endpoints_are_refused_and_counted():
    async with running() as rig, client_of(rig) as client:
        assert 'kill is refused' in await error_of(client, 'kill')
        assert "'train' is not an endpoint; there are ping" in await error_of(client, 'train')
        assert rig.refused == {'kill': 1, 'unknown_endpoint': 1}
        await asyncio.to_thread(client.get_action, observation())


async def test_without_a_right_token_nothing_is_served():
    tokens = Tokens({'arm_7': 'a' * 24})
    async with running(replace(EXPOSURE, tokens=tokens)) as rig:
        for token in ('', 'b' * 24):
            async with client_of(rig, api_token=token) as client:
                for endpoint in ('ping', 'get_modality_config', 'reset', 'get_action'):
                    assert 'Unauthorized' in await error_of(client, endpoint)
        assert rig.refused == {'unauthorized': 8} and not rig.upstream.opened
        async with client_of(rig, api_token='a' * 24) as client:
            await asyncio.to_thread(client.get_action, observation())
        assert rig.upstream.requests[0][0].startswith('gateway/groot/arm_7@127.0.0.1:')


async def test_errors_of_the_router_reach_the_client_with_their_status():
    async with running() as rig, client_of(rig) as client:
        rig.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no server', 1.5)
        assert 'unavailable: no server' in await error_of(client, 'get_modality_config')
        reply = await asyncio.to_thread(client.exchange, msgpack.packb({'endpoint': 'reset'}))
        assert (reply['status'], reply['retry_after_s']) == ('unavailable', 1.5)


async def test_more_requests_than_allowed_are_refused(monkeypatch):
    monkeypatch.setattr(door, 'MAX_REQUESTS', 1)
    async with running() as rig, client_of(rig) as one, client_of(rig) as two:
        rig.upstream.hold()
        waiting = asyncio.create_task(asyncio.to_thread(one.get_action, observation()))
        while not rig.upstream.requests:
            await asyncio.sleep(0.001)
        assert 'overloaded: 1 requests are running' in await error_of(two, 'ping')
        rig.upstream.release()
        await waiting
        assert rig.refused == {'max_requests': 1}


async def test_other_bytes_are_refused_and_nobody_else_notices():
    generator = random.Random(20)
    whole = msgpack.packb(
        {'endpoint': 'get_action', 'data': {'observation': observation()}}, default=pack_npy
    )

    def damaged() -> bytes:
        message = bytearray(whole)
        for _ in range(generator.randint(1, 6)):
            # the head, where everything but the picture's bytes is
            message[generator.randrange(min(len(message), 400))] = generator.randrange(256)
        return bytes(message[: generator.randint(1, len(message))])

    def talk(client: GrootClient) -> int:
        replies = [client.exchange(damaged()) for _ in range(300)]
        return sum('error' in reply for reply in replies if isinstance(reply, dict))

    async with running() as rig, client_of(rig) as client, client_of(rig) as good:
        talking = asyncio.create_task(asyncio.to_thread(talk, client))
        while not talking.done():
            await asyncio.to_thread(good.get_action, observation())
        assert await talking > 200
        assert 'internal_error' not in rig.refused
        for message in (b'', b'\xc1', b'\x01', b'\xdd\xff\xff\xff\xff', b'\x91' * 10_000):
            reply = await asyncio.to_thread(client.exchange, message)
            assert reply['status'] == 'invalid'


async def test_what_is_too_long_or_no_zeromq_ends_that_connection_only():
    async with running(max_message_mb=1.048576) as rig, client_of(rig) as good:
        client = rig.client()
        client.socket.setsockopt(zmq.RCVTIMEO, 300)
        client.socket.send(bytes(2 << 20))
        with pytest.raises(zmq.Again):
            await asyncio.to_thread(client.socket.recv)
        await asyncio.to_thread(client.close)
        host, port = rig.door.address.removeprefix('tcp://').split(':')
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'GET / HTTP/1.1\r\n\r\n' * 100)
        await asyncio.to_thread(good.get_action, observation())
        writer.close()

# SPDX-License-Identifier: Apache-2.0
"""The HTTP door over real sockets: replies and headers, refusals, bounds, sessions of callers."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import ssl
import threading

import aiohttp
import cv2
import numpy as np
import pytest
from support.gateway.certificates import certificate_files
from support.gateway.gateway_rig import CAMERA, exposure_of, rig_tests, until
from support.gateway.http_rig import base64_of, body, HEIGHT, HttpRig, WIDTH

from lerobot_serve.access.token_file import Tokens
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.episode_names import scoped_name
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.core import GIVES_WAY_S
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.http import images
from lerobot_serve.gateway.http.body import KEYS
from lerobot_serve.gateway.http.door import INLINE_BYTES
from lerobot_serve.gateway.http.openapi import document

TOKEN = 'a-token-of-kim-for-tests'
WITH_TOKENS = {'tokens': Tokens({'kim': TOKEN})}
HEAD = b'POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
BEARER = {'Authorization': f'Bearer {TOKEN}'}


http_test = rig_tests(lambda _, **options: HttpRig(**options))


@http_test()
async def test_act(rig):
    reply = await rig.act(body(request_id='r1'))
    assert reply.status == 200
    assert reply.content['actions'] == [[1 + i, 2.5 + i, 3 + i] for i in range(4)]
    assert reply.content['action_names'] == list(EXAMPLE_CONTRACT.action_names)
    assert reply.content['model_version'] == EXAMPLE_CONTRACT.fingerprint
    assert (reply.content['request_id'], reply.content['episode_id']) == ('r1', 'ep_xyz')
    key = scoped_name('127.0.0.1/', 'ep_xyz')
    expected = {'slot': 'prod', 'routing_key': key, 'degraded': False}
    assert reply.content['routing'] == expected and 'warning' not in reply.content
    for prefix in ('X-Reflex', 'X-Lerobot-Serve'):
        assert reply.headers[f'{prefix}-Policy-Slot'] == 'prod'
        assert reply.headers[f'{prefix}-Model-Version'] == EXAMPLE_CONTRACT.fingerprint
        assert reply.headers[f'{prefix}-Routing-Key'] == key
        assert reply.headers[f'{prefix}-Routing-Degraded'] == 'false'
    client_id, asked = rig.upstream.requests[0]
    assert client_id == 'gateway/http/ep_xyz@127.0.0.1'
    assert asked.images[CAMERA].shape == (HEIGHT, WIDTH, 3) and asked.task == 'pick'


@http_test()
async def test_without_an_episode_routing_is_degraded_and_warned_once_a_client(rig):
    first = await rig.act(body(episode_id=None))
    again = await rig.act(body(episode_id=None))
    other = await rig.act(body(episode_id=None, client_id='other'))
    for reply in (first, again, other):
        assert reply.headers['X-Reflex-Routing-Degraded'] == 'true'
        assert reply.content['routing']['degraded']
    assert [('warning' in each.content) for each in (first, again, other)] == [True, False, True]
    assert len([line for line in rig.log.lines if 'no episode_id' in line]) == 2


@http_test()
async def test_a_routing_key_of_any_text_is_a_header(rig):
    reply = await rig.act(body(episode_id='größe 5%'))
    assert reply.headers['X-Reflex-Routing-Key'].startswith('gr%C3%B6%C3%9Fe 5%25~')


@http_test()
async def test_who_shares_a_session(rig):
    for changes in (
        {'client_id': 'arm', 'episode_id': 'e1'},
        {'client_id': 'arm', 'episode_id': 'e2'},
        {'episode_id': 'e1'},
        {'episode_id': 'e1'},
        {'episode_id': None},
        {'episode_id': None},
    ):
        assert (await rig.act(body(**changes))).status == 200
    asked = [client_id.removeprefix('gateway/http/') for client_id, _ in rig.upstream.requests]
    assert asked == [*['arm@127.0.0.1'] * 2, *['e1@127.0.0.1'] * 2, *['127.0.0.1'] * 2]
    assert rig.upstream.opened == 3


@http_test(gateway={'max_callers': 2})
async def test_an_idle_episode_gives_way_to_a_new_one(rig):
    for name in ('e1', 'e2'):
        assert (await rig.act(body(episode_id=name))).status == 200
    refused = await rig.act(body(episode_id='e3'))
    assert refused.status == 429 and refused.headers['Retry-After'] == '1'
    rig.now_s += GIVES_WAY_S
    assert (await rig.act(body(episode_id='e3'))).status == 200
    assert sorted(rig.upstream.open_sessions) == [
        'gateway/http/e2@127.0.0.1',
        'gateway/http/e3@127.0.0.1',
    ]


@http_test()
async def test_a_wrong_field_says_what_was_given_and_what_is_allowed(rig):
    reply = await rig.act(body(state=[1, 2]))
    assert reply.status == 400
    assert reply.error['field'] == 'state' and reply.error['given'] == 'a list of 2'
    assert 'joint_1.pos' in reply.error['allowed'] and reply.error['text']
    assert rig.refused == {'malformed': 1}


@pytest.mark.parametrize(
    ('status', 'expected', 'retry'),
    [
        (Status.INVALID, 400, None),
        (Status.SUPERSEDED, 409, None),
        (Status.OVERLOADED, 429, '3'),
        (Status.QUOTA, 429, '3'),
        (Status.FAILED, 502, None),
        (Status.NOT_FINITE, 502, None),
        (Status.UNAVAILABLE, 503, '3'),
        (Status.TOO_LATE, 504, None),
    ],
)
async def test_each_error_has_its_status(status, expected, retry):
    async with HttpRig().running() as rig:
        rig.upstream.fail_with = PredictionError(status, 'why', 2.5 if retry else 0.0)
        reply = await rig.act(body())
        assert (reply.status, reply.headers.get('Retry-After')) == (expected, retry)
        assert reply.error['status'] == status and reply.error['text'] == 'why'


@http_test(exposure=WITH_TOKENS)
async def test_a_token_is_needed_where_there_are_tokens(rig):
    for headers in ({}, {'Authorization': 'Bearer x'}, {'Authorization': f'Basic {TOKEN}'}):
        for reply in (
            await rig.act(body(), headers=headers),
            await rig.ask('GET', '/config', headers=headers),
        ):
            assert reply.status == 401 and reply.headers['WWW-Authenticate'] == 'Bearer'
    assert (await rig.act(body(), headers=BEARER)).status == 200
    assert (await rig.ask('GET', '/config', headers=BEARER)).status == 200
    assert (await rig.ask('GET', '/health')).status == 200
    assert rig.gateway.callers[0].name == 'kim/ep_xyz'
    assert rig.refused == {'unauthorized': 6}


@http_test()
async def test_a_web_page_is_refused(rig):
    for headers in ({'Origin': 'http://evil.example'}, {'Host': 'evil.example'}):
        assert (await rig.act(body(), headers=headers)).status == 403
    plain = {'Content-Type': 'text/plain'}
    reply = await rig.ask('POST', '/act', data=json.dumps(body()), headers=plain)
    assert reply.status == 415
    assert rig.refused == {'web_page': 2, 'no_json': 1} and not rig.upstream.requests


@http_test()
async def test_what_is_no_http_is_refused_and_counted_without_a_traceback(rig, monkeypatch):
    logged: list[object] = []
    monkeypatch.setattr(logging.Logger, 'callHandlers', lambda _, record: logged.append(record))
    heads = {
        'Host: [::1\r\nContent-Length: 0': b'403',
        'Host: a\r\nOrigin: http://[::1\r\nContent-Length: 0': b'403',
        'Host: 127.0.0.1\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n{}{}': b'400',
        'Host: a\r\nHost: b': b'400',
        'Host: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ': b'400',
    }
    for head, status in heads.items():
        text = f'POST /act HTTP/1.1\r\nContent-Type: application/json\r\n{head}\r\n\r\n'
        async with rig.connection(text.encode()) as (reader, _):
            assert (await reader.readline()).split()[1] == status
    assert rig.refused['web_page'] == 2
    assert rig.refused['malformed'] == 3
    assert not logged


@http_test(max_message_mb=0.002)
async def test_a_large_body_is_refused_before_it_is_read(rig):
    async with rig.connection(HEAD + b'Content-Length: 99999999999\r\n\r\n') as (reader, _):
        head = await reader.readuntil(b'\r\n\r\n')
        assert b' 413 ' in head and b'2000 are allowed' in await reader.read()

    async def pieces():
        for _ in range(10):
            yield b' ' * 1000

    headers = {'Content-Type': 'application/json'}
    reply = await rig.ask('POST', '/act', data=pieces(), headers=headers)
    assert (reply.status, reply.headers['Retry-After']) == (413, '1')
    assert reply.error['retry_after_s'] == 1
    packed = gzip.compress(bytes(100_000))
    headers |= {'Content-Encoding': 'gzip'}
    reply = await rig.ask('POST', '/act', data=packed, headers=headers)
    assert reply.status == 413
    text = f"the body is {len(packed)} bytes of 'gzip' and larger than allowed when unpacked"
    assert reply.error['text'].startswith(f'{text}, 2000 are allowed')
    assert rig.refused == {'too_big': 3}


@http_test(read_timeout_s=0.1)
async def test_a_body_that_does_not_end_is_given_up(rig):
    async with rig.connection(HEAD + b'Content-Length: 100\r\n\r\n{') as (reader, _):
        assert b' 408 ' in await reader.readuntil(b'\r\n\r\n')
        await reader.read()
    assert rig.refused == {'slow': 1}


@http_test(write_timeout_s=0.2)
async def test_a_client_that_stops_reading_is_disconnected(rig):
    rig.upstream.actions = lambda request: np.full((100_000, 3), 0.1, np.float32)
    content = json.dumps(body()).encode()
    async with rig.connection() as (_, writer):
        writer.transport.pause_reading()
        for _ in range(4):
            writer.write(HEAD + f'Content-Length: {len(content)}\r\n\r\n'.encode() + content)
        await until(lambda: rig.refused.get('stopped_reading'))


@http_test(max_connections=1)
async def test_more_connections_than_allowed_are_refused(rig):
    rig.upstream.hold()
    asked = asyncio.create_task(rig.act(body()))
    await until(lambda: rig.upstream.requests)
    async with rig.connection(b'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n') as (reader, _):
        head = await reader.readuntil(b'\r\n\r\n')
        assert b' 503 ' in head and b'Retry-After' in head
        await reader.read()
    rig.upstream.release()
    assert (await asked).status == 200
    assert (await rig.act(body())).status == 200
    assert rig.refused == {'max_connections': 1}


@http_test(max_connections=2)
async def test_where_all_places_are_taken_the_connection_that_rests_longest_gives_way(rig):
    async with rig.connection() as first, rig.connection() as second:
        for each in (first, second, first):
            assert b' 200 ' in await asked_for_config(*each)
        async with rig.connection() as third:
            assert b' 200 ' in await asked_for_config(*third)
            assert await second[0].read() == b''
            assert rig.refused == {'gave_way': 1}
            assert b' 200 ' in await asked_for_config(*first)


@http_test(max_connections=2, exposure=WITH_TOKENS)
async def test_connections_without_a_token_give_way_first(rig):
    async with rig.connection() as kept, rig.connection() as silent:
        assert b' 200 ' in await asked_for_config(*kept)
        # its refusal is delayed for seconds
        rig.door._wrong_tokens.delay_s = lambda *_: 60.0
        silent[1].write(b'GET /config HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n')
        await until(lambda: rig.refused.get('unauthorized'))
        assert (await rig.ask('GET', '/config', headers=BEARER)).status == 200
        assert await silent[0].read() == b''
        assert rig.refused == {'unauthorized': 1, 'gave_way': 1}
        assert b' 200 ' in await asked_for_config(*kept)


@pytest.mark.parametrize('path', ['/', '/health', '/config', '/nothing'])
async def test_a_connection_without_a_token_ends_with_its_reply(path):
    rigs = HttpRig(exposure=WITH_TOKENS).running()
    async with rigs as rig, rig.connection() as (reader, writer):
        writer.write(f'GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n'.encode())
        assert b'Connection: close' in await reader.read()


async def asked_for_config(reader, writer) -> bytes:
    """Return the head of a reply to a caller with a token, whose connection stays open."""
    head = f'GET /config HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}'
    writer.write(f'{head}\r\n\r\n'.encode())
    reply = await reader.readuntil(b'\r\n\r\n')
    length = int(re.search(rb'Content-Length: (\d+)', reply)[1])
    await reader.readexactly(length)
    return reply


@http_test()
async def test_health_follows_the_upstream(rig):
    reply = await rig.ask('GET', '/health')
    assert reply.status == 200 and reply.content['note'] == NO_CAGE
    assert reply.headers['Server'] == 'lerobot_serve'
    rig.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no router', 1.0)
    reply = await rig.ask('GET', '/health')
    assert reply.status == 503 and reply.headers['Retry-After'] == '1'


@http_test(max_message_mb=0.005)
async def test_config_says_what_the_policy_takes(rig):
    content = (await rig.ask('GET', '/config')).content
    assert content['state_names'] == list(EXAMPLE_CONTRACT.state_names)
    assert content['cameras'][CAMERA] == {'height': HEIGHT, 'width': WIDTH, 'channels': 3}
    assert content['limits']['max_message_mb'] == 0.005 and content['note'] == NO_CAGE


@http_test()
async def test_the_description_and_the_page(rig):
    described = (await rig.ask('GET', '/openapi.json')).content
    assert set(described['components']['schemas']['ActBody']['properties']) == set(KEYS)
    answered = set((await rig.act(body(episode_id=None))).content)
    assert answered == set(described['components']['schemas']['ActReply']['properties'])
    headers = described['paths']['/act']['post']['responses']['200']['headers']
    assert set(headers) <= set((await rig.act(body())).headers)
    page = await rig.ask('GET', '/')
    assert page.headers['Content-Type'].startswith('text/html')
    assert all(name in page.content for name in (*KEYS, NO_CAGE, rig.door.address))


def test_the_description_names_its_token():
    secured = document('1', needs_token=True)
    assert secured['paths']['/act']['post']['security'] == [{'token': []}]
    assert 'securitySchemes' not in document('1', needs_token=False)['components']


@http_test()
async def test_other_paths_and_methods(rig):
    assert (await rig.ask('GET', '/nothing')).status == 404
    reply = await rig.ask('GET', '/act')
    assert reply.status == 405 and reply.headers['Allow'] == 'POST'


@http_test()
async def test_a_large_body_is_decoded_beside_the_loop(rig):
    large = body() | {'request_id': 'r'}
    data = json.dumps(large) + ' ' * INLINE_BYTES
    headers = {'Content-Type': 'application/json'}
    assert (await rig.ask('POST', '/act', data=data, headers=headers)).status == 200


@http_test()
async def test_large_pictures_in_a_small_body_are_decoded_beside_the_loop(rig, monkeypatch):
    threads = []
    decode = images._decode_png

    def recorded(field, data, budget):
        pixels = decode(field, data, budget)
        threads.append(threading.current_thread().name)
        return pixels

    monkeypatch.setattr(images, '_decode_png', recorded)
    for side, thread in ((64, 'MainThread'), (2048, 'http_decoder_0')):
        _, png = cv2.imencode('.png', np.zeros((side, side, 3), np.uint8))
        assert len(png) < INLINE_BYTES / 2
        assert (await rig.act(body(image=base64_of(png.tobytes())))).status == 200
        assert threads == [thread]
        threads.clear()


async def test_tls(tmp_path):
    files = certificate_files(tmp_path)
    exposure = exposure_of('http', files)
    async with HttpRig(exposure={'tls': exposure.tls}).running() as rig:
        assert rig.door.address.startswith('https://')
        context = ssl.create_default_context(cafile=files[0])
        assert (await rig.act(body(), ssl=context)).status == 200
        plain = rig.door.address.replace('https', 'http')
        with pytest.raises(aiohttp.ClientError):
            await rig.session.get(plain)

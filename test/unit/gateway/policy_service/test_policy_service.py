# SPDX-License-Identifier: Apache-2.0
"""Predict and PredictStream, with their deadlines, images and refusals."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import simplejpeg
from support.gateway.gateway_rig import GatewayRig, in_loop
from support.gateway.policy_service_rig import (
    EXPOSURE,
    HEIGHT,
    observation,
    policy_service_rig,
    WIDTH,
)
from support.gateway.robot_client_rig import soon

from lerobot_serve.contract.services.policy_service import Action, ENUMS, Image
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.policy_service import conversion
from lerobot_serve.gateway.policy_service.door import PolicyServiceDoor

pytestmark = pytest.mark.usefixtures('grpc_thread')
STATUS = ENUMS['Status']
CAMERA = 'observation.images.front'


async def reply(stream) -> Action:
    return Action.FromString(await stream.read())


async def test_an_observation_is_answered_with_a_chunk():
    async with policy_service_rig() as rig:
        call = rig.call(rig.channel(), observation(episode_id='e1', step_index=41, task='pick'))
        action = Action.FromString(await call)
        assert list(action.continuous_actions) == [0.0, 0.5, 1.0]
        assert np.reshape(action.chunk, (action.chunk_steps, 3)).tolist() == [
            [n, n + 0.5, n + 1.0] for n in range(4)
        ]
        assert (action.step_index, action.model_version) == (41, 'fake@0123456789ab')
        assert (action.slot, action.status) == ('prod', STATUS['OK'])
        (who, request), *_ = rig.upstream.requests
        assert who.startswith('gateway/policy_service/127.0.0.1:')
        assert (request.episode_id[:3], request.task) == ('e1~', 'pick')
        assert np.all(request.images[CAMERA] == 7)
        assert dict(await call.initial_metadata())['lerobot-serve-note'] == NO_CAGE
        assert dict(await call.trailing_metadata())['lerobot-serve-slot'] == 'prod'


async def test_a_client_of_the_first_version_is_served():
    """Fields 1 to 4 alone: a state, and the action of one step."""
    async with policy_service_rig() as rig:
        rig.upstream.contract = rig.upstream.contract.__class__(
            'fake', 'fake@1', ('a', 'b'), ('a', 'b'), {}, 2, 30.0
        )
        data = b'\x0a\x02e1\x12\x08' + np.array([1, 2], '<f4').tobytes() + b'\x18\x05'
        action = await rig.predict(rig.channel(), data)
        assert list(action.continuous_actions) == [1.0, 2.0]
        assert action.model_version == 'fake@1'


async def test_a_jpeg_is_decoded():
    async with policy_service_rig() as rig:
        frame = np.full((HEIGHT, WIDTH, 3), (200, 100, 50), np.uint8)
        data = simplejpeg.encode_jpeg(frame, quality=95)
        image = Image(name=CAMERA, data=data, height=HEIGHT, width=WIDTH, encoding=1)
        await rig.predict(rig.channel(), observation(images=[image]))
        assert np.allclose(rig.upstream.requests[0][1].images[CAMERA], frame, atol=4)


def image(**changes) -> Image:
    size = HEIGHT * WIDTH * 3
    given = {'name': 'front', 'data': bytes(size), 'height': HEIGHT, 'width': WIDTH, **changes}
    return Image(**given)


@pytest.mark.parametrize(
    ('changes', 'text'),
    [
        ({'features': [1.0]}, 'state has 1 values, the policy takes 3'),
        ({'features': [1.0, float('nan'), 0.0]}, 'state[1] is nan'),
        ({'images': []}, 'the policy needs the cameras'),
        ({'images': [image(), image()]}, "two images are named 'front'"),
        ({'images': [image(name='top')]}, "no camera 'top'"),
        ({'images': [image(data=b'abc')]}, '3 bytes cannot be a raw frame'),
        ({'images': [image(encoding=1)]}, 'does not begin as a JPEG does'),
        ({'images': [image(encoding=2)]}, 'encoding must be in [0, 1]'),
        ({'images': [image(height=2**31, width=2**31)]}, 'pixels together'),
        ({'timeout_ms': -1}, 'timeout_ms must be at least 0'),
        ({'episode_id': 'a\n'}, 'episode_id must be printable'),
        ({'inference_delay_steps': -1}, 'inference_delay_steps'),
    ],
)
async def test_an_observation_that_does_not_fit_is_refused(changes, text):
    async with policy_service_rig() as rig:
        channel = rig.channel()
        code, said = await rig.refusal(rig.call(channel, observation(**changes)))
        assert code == 'INVALID_ARGUMENT'
        assert text in said
        assert (await rig.predict(channel, observation())).chunk_steps == 4


def jpeg_image(side: int) -> Image:
    data = simplejpeg.encode_jpeg(np.zeros((side, side, 3), np.uint8))
    return image(data=data, height=side, width=side, encoding=ENUMS['Encoding']['JPEG'])


def test_large_images_are_decoded_beside_the_loop_and_a_stream_keeps_its_order(monkeypatch):
    threads = []
    decode = conversion.frame_of

    def recorded(given):
        threads.append(threading.current_thread().name)
        return decode(given)

    monkeypatch.setattr(conversion, 'frame_of', recorded)

    async def scene():
        async with policy_service_rig() as rig:
            stream = rig.stream(rig.channel())
            for side in (64, 2048, 64):
                await stream.write(observation(images=[jpeg_image(side)]))
                assert (await reply(stream)).status == STATUS['OK']
            await rig.predict(rig.channel(), observation(images=[jpeg_image(2048)]))

    in_loop(scene)
    assert threads == ['MainThread', *['policy_service_decoder_0'] * 3]


async def test_bytes_that_are_no_observation_are_refused():
    async with policy_service_rig() as rig:
        code, text = await rig.refusal(rig.call(rig.channel(), b'\x0a\x7fabc'))
        assert (code, text) == ('INVALID_ARGUMENT', '5 bytes are no rl.policy.v1.Observation')
        assert rig.refused == {'invalid': 1}


async def test_an_observation_that_is_too_large_is_refused_and_the_next_one_served():
    async with policy_service_rig(max_message_mb=len(observation()) / 1e6) as rig:
        channel = rig.channel()
        code, text = await rig.refusal(rig.call(channel, observation(task='x' * 1000)))
        assert code == 'RESOURCE_EXHAUSTED' and 'larger than max' in text
        stream = rig.stream(channel)
        await stream.write(observation(task='x' * 1000))
        assert (await stream.code()).name == 'RESOURCE_EXHAUSTED'
        assert not rig.upstream.requests
        assert (await rig.predict(channel, observation())).chunk_steps == 4


async def test_the_bounds_are_parameters_of_the_door():
    rig = GatewayRig()
    given = EndpointSettings(max_message_mb=5, max_connections=7)
    server = PolicyServiceDoor(rig.gateway, EXPOSURE, given)
    assert (server._message_bytes, server._settings.max_connections) == (5_000_000, 7)


async def test_the_deadline_of_a_call_is_the_timeout_of_its_request():
    async with policy_service_rig() as rig:
        await rig.predict(rig.channel(), observation(), timeout=3.0)
        assert 1.0 < rig.upstream.requests[0][1].timeout_s < 3.5
        await rig.predict(rig.channel(), observation(timeout_ms=500), timeout=3.0)
        assert rig.upstream.requests[1][1].timeout_s <= 0.5


async def test_a_deadline_that_passes_is_too_late():
    async with policy_service_rig() as rig:
        channel = rig.channel()
        rig.upstream.hold()
        code, text = await rig.refusal(rig.call(channel, observation(timeout_ms=50)))
        assert code == 'DEADLINE_EXCEEDED'
        assert text.startswith('no prediction within 0.05 s')
        assert rig.gateway.counters.requests == {('policy_service', 'too_late'): 1}
        stream = rig.stream(channel)
        await stream.write(observation(step_index=7, timeout_ms=50))
        action = await reply(stream)
        assert (action.step_index, action.status) == (7, STATUS['TOO_LATE'])
        rig.upstream.release()
        # the stream continues
        await stream.write(observation(step_index=8))
        action = await reply(stream)
        assert (action.step_index, action.status) == (8, STATUS['OK'])


@pytest.mark.parametrize('status', list(Status))
async def test_every_error_has_a_status_in_both_methods(status):
    async with policy_service_rig() as rig:
        channel = rig.channel()
        await rig.predict(channel, observation())
        rig.upstream.fail_with = PredictionError(status, 'why', retry_after_s=2.0)
        call = rig.call(channel, observation())
        code, text = await rig.refusal(call)
        assert (code != 'UNKNOWN', text) == (True, 'why')
        told = dict(await call.trailing_metadata())
        assert told['lerobot-serve-status'] == status
        stream = rig.stream(channel)
        await stream.write(observation(step_index=1))
        action = await reply(stream)
        assert (action.status, action.text) == (STATUS[status.name], 'why')
        assert not action.chunk


async def test_a_stream_answers_each_observation_and_frees_its_place():
    async with policy_service_rig() as rig:
        stream = rig.stream(rig.channel())
        for step in range(5):
            await stream.write(observation(step_index=step, features=[step, 0, 0]))
            action = await reply(stream)
            assert (action.step_index, action.continuous_actions[0]) == (step, step)
        assert rig.upstream.opened == 1
        assert len(rig.gateway.callers) == 1
        await stream.done_writing()
        assert (await stream.code()).name == 'OK'
        await soon(lambda: not rig.gateway.callers)


async def test_a_newer_observation_of_a_stream_replaces_one_that_waits():
    async with policy_service_rig() as rig:
        stream = rig.stream(rig.channel())
        rig.upstream.hold()
        await stream.write(observation(step_index=1))
        await soon(lambda: rig.upstream.requests)
        await stream.write(observation(step_index=2))
        await stream.write(observation(step_index=3))
        first = await reply(stream)
        assert (first.step_index, first.status) == (2, STATUS['SUPERSEDED'])
        rig.upstream.release()
        others = [await reply(stream), await reply(stream)]
        assert [(a.step_index, a.status) for a in others] == [(1, 0), (3, 0)]


async def test_a_stream_goes_on_after_bytes_that_are_no_observation():
    async with policy_service_rig() as rig:
        stream = rig.stream(rig.channel())
        await stream.write(b'\x0a\x7fabc')
        assert (await reply(stream)).status == STATUS['INVALID']
        await stream.write(observation())
        assert (await reply(stream)).status == STATUS['OK']


def test_a_stream_that_is_cut_leaves_no_session_and_no_traceback(capfd, caplog):
    async def scene():
        async with policy_service_rig() as rig:
            stream = rig.stream(rig.channel())
            rig.upstream.hold()
            await stream.write(observation())
            await soon(lambda: rig.upstream.requests)
            stream.cancel()
            await soon(lambda: not rig.gateway.callers)
            rig.upstream.release()
            other = rig.stream(rig.channel())
            await other.write(observation())
            assert (await reply(other)).status == STATUS['OK']

    in_loop(scene)
    assert 'Traceback' not in capfd.readouterr().err + caplog.text


async def test_one_that_stops_reading_harms_nobody_else():
    async with policy_service_rig() as rig:
        rig.upstream.actions = lambda _: np.zeros((20_000, 3), np.float32)
        stuck = rig.stream(rig.channel())

        async def write_on():
            while True:
                await stuck.write(observation())

        writing = asyncio.create_task(write_on())
        before = -1
        # until it is held back: the next replies find no room
        while before < len(rig.upstream.requests):
            before = len(rig.upstream.requests)
            await asyncio.sleep(0.2)
        other = rig.channel()
        for _ in range(3):
            assert (await rig.predict(other, observation())).chunk_steps == 20_000
        writing.cancel()
        stuck.cancel()


async def test_clients_of_one_connection_are_told_apart_by_their_names():
    async with policy_service_rig() as rig:
        channel = rig.channel()
        for name in ('arm-1', 'arm-2', 'arm-1'):
            await rig.predict(channel, observation(), metadata=(('client-name', name),))
        whose = [who.partition('@')[0] for who, _ in rig.upstream.requests]
        arms = [f'gateway/policy_service/arm-{n}' for n in (1, 2, 1)]
        assert whose == arms
        wrong = rig.call(channel, observation(), metadata=(('client-name', 'a b'),))
        assert (await rig.refusal(wrong))[0] == 'INVALID_ARGUMENT'

# SPDX-License-Identifier: Apache-2.0
"""Describe, and streams that open their session on terms of their own."""

from __future__ import annotations

import pytest
from support.gateway.gateway_rig import CAMERA
from support.gateway.policy_service_rig import observation, policy_service_rig
from support.gateway.robot_client_rig import soon

from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.policy_service import (
    Action,
    Camera,
    ENUMS,
    Observation,
    Policy,
    record_of,
    SERVICE,
    Session,
    session_of,
    Tag,
)
from lerobot_serve.contract.types import KeyValue
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT

STATUS = ENUMS['Status']
NAMES = EXAMPLE_CONTRACT.action_names

pytestmark = pytest.mark.usefixtures('grpc_thread')


def opening(**changes) -> bytes:
    """Return the first message of a stream, on the terms of the policy unless given others."""
    given = {
        'state_names': NAMES,
        'action_names': NAMES,
        'cameras': [Camera(name=CAMERA, channels=3)],
        'fps': 15.0,
        **changes,
    }
    return Observation(session=Session(**given), step_index=3).SerializeToString()


def test_the_terms_of_a_session_are_the_same_on_both_sides():
    terms = OpenSessionRequest(
        policy='v2',
        fps=15.0,
        state_names=('a', 'b'),
        action_names=('c',),
        cameras=(CameraSpec('front', 48, 64, 3),),
        task='pick',
        tags=(KeyValue('site', 'lab'),),
    )
    sent = Observation(session=session_of(terms)).SerializeToString()
    assert record_of(Observation.FromString(sent).session) == terms


async def reply(stream) -> Action:
    return Action.FromString(await stream.read())


async def test_describe_says_what_is_served_and_opens_nothing():
    async with policy_service_rig() as rig:
        method = rig.channel().unary_unary(f'/{SERVICE}/Describe')
        policy = Policy.FromString(await method(b''))
        assert (policy.id, policy.fingerprint) == ('fake', 'fake@0123456789ab')
        assert (tuple(policy.state_names), tuple(policy.action_names)) == (NAMES, NAMES)
        (camera,) = policy.cameras
        assert (camera.name, camera.height, camera.width) == (CAMERA, 48, 64)
        assert (policy.chunk_steps, policy.control_hz) == (4, 30.0)
        assert (policy.observation_steps, policy.client_id) == (1, '')
        assert not rig.gateway.callers
        rig.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no router')
        assert await rig.refusal(method(b'')) == ('UNAVAILABLE', 'no router')


async def test_a_stream_opens_its_session_on_its_terms():
    async with policy_service_rig() as rig:
        stream = rig.stream(rig.channel())
        tags = [Tag(key='run', value='7')]
        await stream.write(opening(task='tidy', policy='fake', tags=tags))
        action = await reply(stream)
        assert (action.status, action.step_index, len(action.chunk)) == (0, 3, 0)
        (caller,) = rig.gateway.callers
        assert action.policy.client_id == caller.client_id
        assert action.policy.fingerprint == action.model_version == 'fake@0123456789ab'
        (terms,) = rig.upstream.terms
        assert (terms.task, terms.policy, terms.fps) == ('tidy', 'fake', 15.0)
        assert terms.tags == (KeyValue('run', '7'),)
        assert not rig.upstream.requests
        await stream.write(observation(step_index=4))
        action = await reply(stream)
        assert (action.step_index, action.processing_ms, action.superseded) == (4, 0.5, 2)


async def test_a_refused_session_has_the_code_of_the_server_and_the_stream_goes_on():
    async with policy_service_rig() as rig:
        stream = rig.stream(rig.channel())
        await stream.write(opening(action_names=NAMES[::-1]))
        action = await reply(stream)
        assert action.status == STATUS['INVALID']
        assert action.refusal == Refusal.ACTION_NAMES
        assert 'order differ' in action.text and not action.HasField('policy')
        assert not rig.gateway.callers
        # nor does an observation of this stream get a session on other terms
        await stream.write(observation())
        assert (await reply(stream)).refusal == Refusal.ACTION_NAMES
        await stream.write(opening())
        assert (await reply(stream)).HasField('policy')


async def test_a_session_that_was_closed_is_opened_again_on_its_terms():
    async with policy_service_rig() as rig:
        stream = rig.stream(rig.channel())
        await stream.write(opening())
        await reply(stream)
        await rig.gateway.release(rig.gateway.callers[0])
        await stream.write(observation())
        assert (await reply(stream)).status == STATUS['OK']
        first, second = rig.upstream.terms
        assert first == second is not None


async def test_other_terms_than_those_of_an_open_session_are_refused():
    async with policy_service_rig() as rig:
        channel = rig.channel()
        first, second = rig.stream(channel), rig.stream(channel)
        await first.write(opening())
        await reply(first)
        await second.write(opening(task='another'))
        action = await reply(second)
        assert action.status == STATUS['INVALID'] and 'on other terms' in action.text
        await second.done_writing()
        await first.done_writing()
        await soon(lambda: not rig.gateway.callers)


async def test_predict_opens_no_session_on_terms():
    async with policy_service_rig() as rig:
        code, text = await rig.refusal(rig.call(rig.channel(), opening()))
        assert (code, 'PredictStream' in text) == ('INVALID_ARGUMENT', True)

# SPDX-License-Identifier: Apache-2.0
"""The reports of the policy server: complete, and such that every message can hold them."""

from __future__ import annotations

from builtin_interfaces.msg import Time
import pytest
from support.replacing import replace
from support.server.server_core_rig import ask, request, Rig
from support.server.session_rig import FRONT

from lerobot_serve.contract.limits import REASON_LIMIT, TEXT_LIMIT
from lerobot_serve.contract.schema import Refusal, StateClass
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.server.messages import (
    fill_accepted,
    fill_load,
    fill_policy,
    fill_refused,
    server_status_message,
    ServerState,
)
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import GetStatus, OpenSession

LONG_TEXTS = ['x' * 5000, 'ü' * 5000, 'half a pair \udcff', 'a\0b']


def status(rig: Rig | None, server_state: ServerState) -> ServerStatus:
    return server_status_message(
        rig and rig.core,
        rig.statistics if rig else ServerStatistics(),
        server_state,
        stamp=Time(sec=5),
        server='/policy_server',
        slot='a',
    )


def test_the_status_tells_what_is_served_and_what_was_counted():
    rig = Rig(state_class=StateClass.RECURRENT, device='cuda:1')
    rig.open()
    for seq in (1, 2):
        rig.core.enqueue(request(seq=seq), 0)
    rig.step()
    rig.core.enqueue(b'', 0)
    rig.core.enqueue(request(9), 0)
    told = status(rig, ServerState(ServerStatus.ACTIVE, 'fine'))
    assert (told.state, told.text, told.slot) == (ServerStatus.ACTIVE, 'fine', 'a')
    assert (told.server, told.stamp.sec) == ('/policy_server', 5)
    assert (told.policy, told.policy_type) == ('fake@0123456789abcdef', 'fake')
    assert (told.device, told.state_class) == ('cuda:1', ServerStatus.RECURRENT)
    assert (told.warmed_up, told.active_sessions, told.max_sessions) == (True, 1, 100)
    assert (told.requests, told.chunks, told.superseded) == (2, 1, 1)
    assert told.inference_ms_p50 == told.inference_ms_p99 == 1.0
    assert told.queue_wait_ms_p99 > 0
    assert {drop.reason: drop.count for drop in told.dropped} == {
        'encapsulation': 1,
        'no_session': 1,
    }


def test_a_server_without_a_policy_has_a_status_too():
    told = status(None, ServerState(ServerStatus.FAILED, 'no such file'))
    assert (told.state, told.text) == (ServerStatus.FAILED, 'no such file')
    assert (told.policy, told.warmed_up, told.max_sessions) == ('', False, 0)
    assert list(told.dropped) == []


@pytest.mark.parametrize('text', LONG_TEXTS)
def test_a_text_from_anywhere_fits_the_status(text):
    told = status(None, ServerState(ServerStatus.FAILED, text)).text
    assert 0 < len(told.encode()) <= TEXT_LIMIT
    assert '\0' not in told


def test_a_session_is_told_all_that_it_needs():
    rig = Rig(
        chunk_size=50,
        supports_rtc=True,
        observation_steps=2,
        observation_stride_steps=3,
        state_class=StateClass.NEEDS_HISTORY,
        notes=('trained on one robot',),
    )
    session = rig.open()
    reply = OpenSession.Response()
    fill_accepted(reply, session, rig.core.description, '/policy_server/observation')
    assert (reply.accepted, reply.code, list(reply.warnings)) == (
        True,
        0,
        ['trained on one robot'],
    )
    assert (reply.schema_version, reply.session_epoch) == (1, 7)
    assert (reply.session_id, reply.codec) == ('robot_1#00000007', session.request.codec)
    assert reply.observation_topic == '/policy_server/observation'
    assert (reply.policy_type, reply.state_class, reply.warmed_up) == ('fake', 2, True)
    assert (reply.chunk_size, reply.trained_fps, reply.supports_rtc) == (50, 30.0, True)
    assert (reply.observation_steps, reply.observation_stride_steps) == (2, 3)
    assert list(reply.extensions) == []


def test_a_session_is_told_the_range_of_the_actions_where_it_is_known():
    told = ActionRange((-1.0, -2.0, 0.0), (1.0, 2.0, 100.0))
    rig, reply = Rig(action_range=told), OpenSession.Response()
    fill_accepted(reply, rig.open(), rig.core.description, '/observation')
    (extension,) = reply.extensions
    assert action_range.find([extension]) == told


@pytest.mark.parametrize('text', LONG_TEXTS)
def test_a_warning_from_anywhere_fits_the_reply(text):
    rig, reply = Rig(notes=(text,)), OpenSession.Response()
    fill_accepted(reply, rig.open(), rig.core.description, '/observation')
    (warning,) = reply.warnings
    assert 0 < len(warning.encode()) <= TEXT_LIMIT


def test_a_client_that_was_refused_hears_how_busy_the_server_is():
    rig = Rig()
    rig.statistics.reset_for_policy(0.1)
    rig.open(1)
    rig.core.enqueue(request(1), 0)
    reply = fill_load(OpenSession.Response(), rig.core, ask(2))
    assert (reply.policy, reply.load) == ('fake@0123456789abcdef', 0.0)
    assert reply.predicted_delay_ms == pytest.approx(200.0)
    assert (reply.active_sessions, reply.max_sessions) == (1, 100)
    assert not reply.accepted


@pytest.mark.parametrize('reply', [OpenSession.Response(), GetStatus.Response()])
def test_both_replies_describe_the_policy(reply):
    fill_policy(reply, replace(Rig().core.description, trained_fps=12))
    assert list(reply.state_names) == list(reply.action_names)
    assert list(reply.action_names) == ['pan.pos', 'lift.pos', 'grip.pos']
    (camera,) = reply.cameras
    assert (camera.name, camera.height, camera.width, camera.channels) == (FRONT, 8, 16, 3)
    assert (reply.chunk_size, reply.trained_fps, reply.supports_rtc) == (4, 12.0, False)
    assert (reply.observation_steps, reply.observation_stride_steps) == (1, 1)


def test_the_classes_of_state_are_those_of_the_message():
    for kind in StateClass:
        assert getattr(ServerStatus, kind.name) == kind


def test_a_refusal_in_any_language_is_one_that_clients_read():
    task, other = '折叠衣服' * 100, '打开抽屉' * 100
    reason = f'task is {task}, the policy is pinned to {other}'
    assert len(reason) < REASON_LIMIT < len(reason.encode())
    response = fill_refused(OpenSession.Response(), Refusal.TASK_PINNED, reason)
    assert len(response.reason.encode()) <= REASON_LIMIT
    assert reason.startswith(response.reason)

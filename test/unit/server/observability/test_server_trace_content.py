# SPDX-License-Identifier: Apache-2.0
"""What a server's trace keeps of pictures and words, and tells of sessions and states."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
import threading

import numpy as np
import pytest
from support.server.server_core_rig import request, Rig
from support.server.server_trace_rig import Told
from support.server.worker_rig import OBSERVATION, ROWS

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Refusal, StateClass, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.observability.trace_recorder import make_trace_recorder
from lerobot_serve.server.parameters import ServerParameters

NAN = np.full_like(ROWS, np.nan)
GOODBYE = SessionRefused(Refusal.DRAINING, 'the server is going away')


@pytest.fixture
def told(tmp_path) -> Told:
    return Told(tmp_path)


@pytest.mark.parametrize(
    ('level', 'task', 'image'),
    [
        ('full', 'fold the towel', {'base64'}),
        ('hash', f'sha256:{sha256(b"fold the towel").hexdigest()}', {'sha256'}),
        ('none', None, None),
    ],
)
def test_images_and_instructions_stand_there_as_the_operator_wants(tmp_path, level, task, image):
    told = Told(
        tmp_path, trace_images=level, trace_instructions=level, default_task='fold the towel'
    )
    rig = Rig(observer=told.observer)
    rig.open()
    rig.core.enqueue(request(), 0)
    rig.step()
    (record,), (header,) = told.read('request'), told.read('header')
    assert record.get('task') == task
    assert header['parameters']['default_task'] == task
    if image:
        assert image <= set(record['images'][0])
    else:
        assert 'images' not in record


def test_no_image_is_looked_at_by_the_thread_that_answers(told, monkeypatch):
    rig = Rig(observer=told.observer)
    rig.open()
    threads = []
    redaction = told.recorder._redaction.__class__
    real = redaction.image_records

    def image_records(self, images):
        threads.append(threading.get_ident())
        return real(self, images)

    monkeypatch.setattr(redaction, 'image_records', image_records)
    rig.core.enqueue(request(), 0)
    rig.step()
    assert threads == []
    told.recorder.writer.drain()
    assert len(threads) == 1


@pytest.mark.parametrize('ours', [True, False])
def test_a_prefix_is_told_with_whose_it_is(told, ours):
    rig = Rig(observer=told.observer, supports_rtc=True)
    rig.open()
    policy = rig.core.description.fingerprint if ours else 'other@1'
    prefixed = replace(
        OBSERVATION,
        prefix_policy=policy,
        prefix_robot=ROWS[:2],
        prefix_model=ROWS[:2],
        inference_delay_steps=1,
    )
    rig.core.enqueue(wire_observation.encode(prefixed), 0)
    rig.step()
    (record,) = told.read('request')
    assert (record['prefix_policy'], record['prefix_ignored']) == (policy, not ours)
    # the row before repeats the prefix
    assert record['chunk_range'] == [1 if ours else 0, len(ROWS)]


def test_sessions_come_and_go_by_name(told):
    rig = Rig(observer=told.observer)
    session = rig.open()
    rig.open()
    rig.core.end_sessions([session], 'client_gone')
    states = told.read('state')
    assert [(s['component'], s['from'], s['to'], s.get('reason')) for s in states] == [
        ('session', 'closed', 'open', None),
        ('session', 'open', 'closed', 'client_gone'),
    ]
    assert {(s['client_id'], s['session_epoch']) for s in states} == {('robot_1', 7)}
    assert {s['session_id'] for s in states} == {session.session_id}


def test_policies_states_and_parameters_are_told(told):
    rig = Rig(observer=told.observer)
    rig.observer.on_state_changed('inactive', 'active', '')
    rig.observer.on_state_changed('active', 'active', 'nothing new')
    rig.observer.on_policy_changed(rig.core.description)
    rig.observer.on_policy_changed(None)
    rig.observer.on_parameters_changed(
        replace(told.parameters, max_sessions=3, default_task='pick')
    )
    rig.observer.on_parameters_changed(
        replace(told.parameters, max_sessions=3, default_task='pick')
    )
    (state,) = told.read('state')
    assert (state['component'], state['from'], state['to']) == ('server', 'inactive', 'active')
    (header,), (served, none) = told.read('header'), told.read('policies')
    # it began before a policy was loaded
    assert 'policies' not in header
    assert served['policies'] == [
        {'slot': 'a', 'policy_id': 'fake', 'policy_hash': '0123456789abcdef'}
    ]
    assert none['policies'] == []
    changes = {r['name']: (r['old'], r['new']) for r in told.read('parameter')}
    assert changes == {'max_sessions': (16, 3), 'default_task': ('', 'pick')}


def test_the_end_waits_for_those_who_still_tell_something(told):
    rig, stop = Rig(observer=told.observer), threading.Event()
    rig.open()

    class Late:
        """A thread that is still at work."""

        def join(self, timeout_s: float) -> None:
            assert timeout_s > 0
            rig.core.enqueue(b'', 0)
            rig.core.enqueue(request(), 0)
            rig.step()

    stop.set()
    told.recorder.run(stop, [Late()])
    kinds = [record['kind'] for record in told.read()]
    assert kinds == ['header', 'state', 'request', 'drop', 'footer']


def test_a_server_that_wants_no_trace_has_none():
    assert (
        make_trace_recorder(
            ServerParameters(), '/s', ServerStatistics(), clock=int, log_warning=print
        )
        is None
    )
    rig = Rig(observer=lambda _: RequestObserver(), state_class=StateClass.RECURRENT)
    session = rig.open()
    rig.core.enqueue(request(), 0)
    (chunk,) = rig.step()
    rig.core.end_sessions([session], 'gone')
    assert isinstance(chunk, Chunk)
    assert chunk.status == Status.OK

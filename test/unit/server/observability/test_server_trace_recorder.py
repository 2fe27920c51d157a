# SPDX-License-Identifier: Apache-2.0
"""The server's trace: what became of every request, and of the server itself."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
import tempfile
import threading

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.replacing import replace
from support.server.server_core_rig import request, Rig
from support.server.server_trace_rig import Told
from support.server.worker_rig import FRAME, gives, OBSERVATION, raises, ROWS

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Refusal, StateClass, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.observability.trace_recorder import make_trace_recorder
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.traces.reader import read_records

NAN = np.full_like(ROWS, np.nan)
GOODBYE = SessionRefused(Refusal.DRAINING, 'the server is going away')


@pytest.fixture
def told(tmp_path) -> Told:
    return Told(tmp_path)


def test_a_request_that_was_answered_has_all_that_is_known_of_it(told):
    rig = Rig(observer=told.observer, stochastic=True)
    rig.open()
    rig.core.enqueue(request(), 0)
    (chunk,) = rig.step()
    (record,) = told.read('request')
    assert record.pop('chunk_bytes') > 0
    (image,) = record.pop('images')
    assert (image['name'], image['sha256']) == (
        OBSERVATION.images[0].name,
        sha256(FRAME.tobytes()).hexdigest(),
    )
    assert record == {
        'kind': 'request',
        'mono_ns': 5,
        'client_id': 'robot_1',
        'session_id': 'robot_1#00000007',
        'session_epoch': 7,
        'seq': 3,
        'episode_id': 'episode_1',
        'status': 'ok',
        'episode': 2,
        'routing': {'slot': 'a'},
        'policy': 'fake@0123456789abcdef',
        'seed': chunk.seed,
        'queue_wait_ms': 1.0,
        'processing_ms': chunk.processing_ms,
        'inference_ms': 1.0,
        'request_bytes': len(request()),
        'chunk_range': [0, len(ROWS)],
        'superseded': 0,
        'task': 'fold the towel',
    }


@pytest.mark.parametrize(
    ('predict', 'status', 'why'),
    [
        (raises(ValueError('no')), 'policy_error', 'the policy raised ValueError: no'),
        (gives(NAN), 'not_finite', 'the model chunk holds NaN or infinity'),
    ],
)
def test_a_policy_that_fails_is_an_incident(told, predict, status, why):
    rig = Rig(predict, observer=told.observer, stochastic=True)
    rig.open()
    rig.core.enqueue(request(), 0)
    rig.step()
    (record,) = told.read('request')
    assert (record['status'], record['reason']) == (status, why)
    assert record['seed'] > 0
    assert 'inference_ms' not in record
    (incident,) = told.read('incident')
    assert (incident['name'], incident['reason'], incident['seq']) == (status, why, 3)
    told.recorder.record_drops()
    assert told.read('drop') == []


def test_one_bad_request_of_a_batch_leaves_the_others_well(told):
    def predict(asked):
        return gives(NAN if asked.session_id.startswith('robot_2') else ROWS)(asked)

    rig = Rig(predict, observer=told.observer)
    batch = []
    for number in (1, 2):
        rig.open(number)
        rig.core.enqueue(request(number, seq=number), 0)
        batch += rig.request_queue.take_batch()
    for queued, chunk in rig.worker.process(batch):
        rig.tell(queued, chunk)
    assert told.statuses() == [(1, 'ok'), (2, 'not_finite')]


def test_a_request_that_is_no_observation_is_told_without_its_content(told):
    rig = Rig(observer=told.observer)
    rig.open()
    rig.core.enqueue(request()[:-40], 0)
    rig.step()
    (record,) = told.read('request')
    assert record['status'] == 'bad_observation'
    assert not {'task', 'images'} & set(record)


def test_every_end_of_a_request_before_the_policy_saw_it_is_told(told):
    rig = Rig(observer=told.observer)
    session = rig.open()
    for seq in (1, 2):
        rig.core.enqueue(request(seq=seq), 0)
    rig.core.start_episode(session, 3)
    rig.core.enqueue(request(seq=3, episode=3), 1_000_000)
    told.now_ns = 3_000_000
    rig.core.end_sessions([session], 'closed by the client')
    assert told.statuses() == [(1, 'superseded'), (2, 'episode_ended'), (3, 'session_ended')]
    last = told.read('request')[-1]
    assert (last['client_id'], last['episode_id'], last['episode']) == ('robot_1', 'episode_1', 3)
    assert last['queue_wait_ms'] == 2.0
    told.recorder.record_drops()
    assert told.read('drop') == []


def test_what_comes_while_the_server_goes_away_is_told(told):
    rig = Rig(observer=told.observer)
    rig.open()
    rig.core.stop_accepting(GOODBYE)
    rig.tell(*rig.core.enqueue(request(), 0))
    (record,) = told.read('request')
    assert (record['status'], record['reason']) == ('draining', str(GOODBYE))
    assert record['routing'] == {'slot': 'a'}
    told.recorder.record_drops()
    assert told.read('drop') == []


def test_an_answer_that_nobody_waits_for_any_more_is_told_as_that(told):
    rig = Rig(observer=told.observer)
    rig.open()
    rig.core.enqueue(request(), 0)
    ((queued, chunk),) = rig.worker.process(rig.request_queue.take_batch())
    rig.observer.on_reply(queued, chunk, b'', 'session_closed')
    assert told.statuses() == [(3, 'session_closed')]


def test_a_request_without_a_session_has_the_name_of_its_caller(told):
    rig = Rig(observer=told.observer)
    rig.core.enqueue_one_shot('one#1', request(9), 0, lambda _: None)
    rig.step()
    (record,) = told.read('request')
    assert (record['client_id'], record['status']) == ('robot_9', 'ok')


def test_what_reaches_no_session_is_told_together(told):
    rig = Rig(observer=told.observer)
    for raw in (b'', request(9), request(9)):
        rig.core.enqueue(raw, 0)
    told.recorder.record_drops()
    rig.core.enqueue(request(9), 0)
    told.recorder.record_drops()
    told.recorder.record_drops()
    drops = [(record['reason'], record['count']) for record in told.read('drop')]
    assert sorted(drops) == [('encapsulation', 1), ('no_session', 1), ('no_session', 2)]


def test_every_drop_is_in_the_trace_once(told):
    rig = Rig(raises(ValueError()), observer=told.observer)
    session = rig.open()
    for seq in (1, 2):
        rig.core.enqueue(request(seq=seq), 0)
        rig.step()
    rig.core.enqueue(request(9), 0)
    rig.core.enqueue(request(seq=3), 0)
    rig.core.end_sessions([session], 'gone')
    told.recorder.record_drops()
    counted = sum(rig.drops.values())
    in_records = sum(record['count'] for record in told.read('drop'))
    assert counted == in_records + sum(status != 'ok' for _, status in told.statuses()) == 4


# what a server's trace keeps of pictures and words, and tells of sessions and states


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
    redaction = told.recorder.redaction.__class__
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
    told.recorder.run(stop, [Late()], told.recorder.drops)
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


# whatever happens: each request of a session has one record, and each drop is told once


ROBOTS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just('ask'), ROBOTS),
        st.tuples(st.just('ask'), ROBOTS),
        st.tuples(st.just('ask badly'), ROBOTS),
        st.tuples(st.just('answer'), st.just(0)),
        st.tuples(st.just('episode'), ROBOTS),
        st.tuples(st.just('close'), ROBOTS),
        st.tuples(st.just('open'), ROBOTS),
        st.tuples(st.just('look'), st.just(0)),
        st.tuples(st.just('go away'), st.just(0)),
        st.tuples(st.just('come back'), st.just(0)),
    ),
    max_size=40,
)
WITH_NAN = np.full_like(ROWS, np.nan)
# endings that are not drops
NO_DROP = {'ok', 'superseded'}


class Script:
    """A server that goes through a script; `asked` are the requests that reached a session."""

    def __init__(self, folder: str) -> None:
        parameters = ServerParameters(trace_folder=folder)
        answers = iter(range(10_000))

        def predict(asked):
            return gives(WITH_NAN if next(answers) % 3 == 2 else ROWS)(asked)

        def observer(statistics):
            clock = iter(range(1_000_000)).__next__
            self.recorder = make_trace_recorder(
                parameters, '/s', statistics, clock=clock, log_warning=pytest.fail
            )
            return RequestObserver(self.recorder)

        self.rig = Rig(predict, observer=observer)
        self.open: dict[int, object] = {}
        self.asked: list[int] = []
        self.seq = self.episode = 0

    def run(self, step: str, robot: int) -> None:
        rig, session = self.rig, self.open.get(robot)
        if step in ('ask', 'ask badly'):
            self.seq += 1
            raw = request(robot, seq=self.seq, episode=self.episode)
            refused = rig.core.enqueue(raw if step == 'ask' else raw[:-30], 0)
            self.asked += [self.seq] if session else []
            if refused:
                rig.tell(*refused)
        elif step == 'answer' and len(rig.request_queue):
            rig.step()
        elif step == 'episode' and session:
            self.episode += 1
            rig.core.start_episode(session, self.episode)
        elif step == 'close' and session:
            rig.core.sessions.close(session.request.client_id, session.request.session_epoch)
            rig.core.end_sessions([self.open.pop(robot)], 'closed by the client')
        elif step == 'open' and not session and rig.core._refusal is None:
            self.open[robot] = rig.open(robot)
        elif step == 'look':
            self.recorder.record_drops()
        elif step == 'go away':
            rig.core.stop_accepting(SessionRefused(Refusal.DRAINING, 'away'))
        elif step == 'come back':
            rig.core.accept_requests()

    def finish(self) -> list[dict]:
        """End as a process does; return the records."""
        self.rig.core.stop_accepting(SessionRefused(Refusal.DRAINING, 'away'))
        for queued, chunk in self.rig.core.abort_waiting():
            self.rig.tell(queued, chunk)
        self.recorder.record_drops()
        self.recorder.writer.close()
        return [record for _, record in read_records(self.recorder.writer.path)]


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_request_has_one_record_and_every_drop_is_told_once(steps):
    with tempfile.TemporaryDirectory() as folder:
        script = Script(folder)
        for step in (('open', 1), ('open', 2), *steps):
            script.run(*step)
        found = script.finish()
    requests = [record for record in found if record['kind'] == 'request']
    assert sorted(record['seq'] for record in requests) == script.asked
    told = Counter(
        {record['status']: 0 for record in requests}
        | {record['reason']: 0 for record in found if record['kind'] == 'drop'}
    )
    for record in requests:
        told[record['status']] += record['status'] not in NO_DROP
    for record in found:
        if record['kind'] == 'drop':
            told[record['reason']] += record['count']
    counted = Counter(script.rig.drops)
    # a bad observation is counted by what is wrong with it
    bad = told.pop('bad_observation', 0)
    assert (counted - told).total() == bad
    assert not told - counted

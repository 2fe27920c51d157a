"""The server's trace: what became of every request, and of the server itself."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
import threading

import numpy as np
import pytest
from serving_rig import request, Rig
from worker_rig import FRAME, gives, OBSERVATION, raises, ROWS

from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.recorder import make_recorder
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.server.watch import Watch
from lerobot_serve.trace.reader import read
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.schema import Refusal, StateClass, Status
from lerobot_serve.wire.session import Refused

NAN = np.full_like(ROWS, np.nan)
GOODBYE = Refused(Refusal.DRAINING, 'the server is going away')


class Told:
    """A trace of a server with the slot a, and what stands in it so far."""

    def __init__(self, folder: Path, **parameters: object) -> None:
        wanted = {'trace_images': 'hash'} | parameters
        self.parameters = ServerParameters(trace_folder=str(folder), slot='a', **wanted)
        self.now_ns = 5

    def watch(self, statistics: Statistics) -> Watch:
        self.recorder = make_recorder(
            self.parameters,
            '/policy_server',
            statistics,
            clock=lambda: self.now_ns,
            tell=pytest.fail,
        )
        return Watch(self.recorder)

    def read(self, *kinds: str) -> list[dict]:
        """Return the records, of some kinds or of all."""
        self.recorder.writer.drain()
        found = (record for _, record in read(self.recorder.writer.path))
        return [record for record in found if not kinds or record['kind'] in kinds]

    def statuses(self) -> list[tuple[int, str]]:
        return [(record['seq'], record['status']) for record in self.read('request')]


@pytest.fixture
def told(tmp_path) -> Told:
    return Told(tmp_path)


def test_a_request_that_was_answered_has_all_that_is_known_of_it(told):
    rig = Rig(watch=told.watch, stochastic=True)
    rig.open()
    rig.serving.deposit(request(), 0)
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
        'client': 'robot_1',
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
    rig = Rig(predict, watch=told.watch, stochastic=True)
    rig.open()
    rig.serving.deposit(request(), 0)
    rig.step()
    (record,) = told.read('request')
    assert (record['status'], record['reason']) == (status, why)
    assert record['seed'] > 0
    assert 'inference_ms' not in record
    (incident,) = told.read('incident')
    assert (incident['name'], incident['why'], incident['seq']) == (status, why, 3)
    told.recorder.look()
    assert told.read('drop') == []


def test_one_bad_request_of_a_batch_leaves_the_others_well(told):
    def predict(asked):
        return gives(NAN if asked.session_id.startswith('robot_2') else ROWS)(asked)

    rig = Rig(predict, watch=told.watch)
    mails = []
    for number in (1, 2):
        rig.open(number)
        rig.serving.deposit(request(number, seq=number), 0)
        mails += rig.mailbox.take()
    for mail, chunk in rig.worker.answer(mails):
        rig.tell(mail, chunk)
    assert told.statuses() == [(1, 'ok'), (2, 'not_finite')]


def test_a_request_that_is_no_observation_is_told_without_its_content(told):
    rig = Rig(watch=told.watch)
    rig.open()
    rig.serving.deposit(request()[:-40], 0)
    rig.step()
    (record,) = told.read('request')
    assert record['status'] == 'bad_observation'
    assert not {'task', 'images'} & set(record)


def test_every_end_of_a_request_before_the_policy_saw_it_is_told(told):
    rig = Rig(watch=told.watch)
    session = rig.open()
    for seq in (1, 2):
        rig.serving.deposit(request(seq=seq), 0)
    rig.serving.begin_episode(session, 3)
    rig.serving.deposit(request(seq=3, episode=3), 1_000_000)
    told.now_ns = 3_000_000
    rig.serving.end([session], 'closed by its robot')
    assert told.statuses() == [(1, 'superseded'), (2, 'episode_ended'), (3, 'session_ended')]
    last = told.read('request')[-1]
    assert (last['client'], last['episode_id'], last['episode']) == ('robot_1', 'episode_1', 3)
    assert last['queue_wait_ms'] == 2.0
    told.recorder.look()
    assert told.read('drop') == []


def test_what_comes_while_the_server_goes_away_is_told(told):
    rig = Rig(watch=told.watch)
    rig.open()
    rig.serving.refuse(GOODBYE)
    rig.tell(*rig.serving.deposit(request(), 0))
    (record,) = told.read('request')
    assert (record['status'], record['reason']) == ('draining', str(GOODBYE))
    assert record['routing'] == {'slot': 'a'}
    told.recorder.look()
    assert told.read('drop') == []


def test_an_answer_that_nobody_waits_for_any_more_is_told_as_that(told):
    rig = Rig(watch=told.watch)
    rig.open()
    rig.serving.deposit(request(), 0)
    ((mail, chunk),) = rig.worker.answer(rig.mailbox.take())
    rig.watch.answered(mail, chunk, b'', 'session_closed')
    assert told.statuses() == [(3, 'session_closed')]


def test_a_request_without_a_session_has_the_name_of_its_caller(told):
    rig = Rig(watch=told.watch)
    rig.serving.deposit_one('one#1', request(9), 0, lambda _: None)
    rig.step()
    (record,) = told.read('request')
    assert (record['client'], record['status']) == ('robot_9', 'ok')


def test_what_reaches_no_session_is_told_together(told):
    rig = Rig(watch=told.watch)
    for raw in (b'', request(9), request(9)):
        rig.serving.deposit(raw, 0)
    told.recorder.look()
    rig.serving.deposit(request(9), 0)
    told.recorder.look()
    told.recorder.look()
    drops = [(record['reason'], record['count']) for record in told.read('drop')]
    assert sorted(drops) == [('encapsulation', 1), ('no_session', 1), ('no_session', 2)]


def test_every_drop_is_in_the_trace_once(told):
    rig = Rig(raises(ValueError()), watch=told.watch)
    session = rig.open()
    for seq in (1, 2):
        rig.serving.deposit(request(seq=seq), 0)
        rig.step()
    rig.serving.deposit(request(9), 0)
    rig.serving.deposit(request(seq=3), 0)
    rig.serving.end([session], 'gone')
    told.recorder.look()
    counted = sum(rig.drops.values())
    in_records = sum(record['count'] for record in told.read('drop'))
    assert counted == in_records + sum(status != 'ok' for _, status in told.statuses()) == 4


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
    rig = Rig(watch=told.watch)
    rig.open()
    rig.serving.deposit(request(), 0)
    rig.step()
    (record,), (header,) = told.read('request'), told.read('header')
    assert record.get('task') == task
    assert header['parameters']['default_task'] == task
    if image:
        assert image <= set(record['images'][0])
    else:
        assert 'images' not in record


def test_no_image_is_looked_at_by_the_thread_that_answers(told, monkeypatch):
    rig = Rig(watch=told.watch)
    rig.open()
    threads = []
    redaction = told.recorder._redaction.__class__
    real = redaction.pictures

    def pictures(self, images):
        threads.append(threading.get_ident())
        return real(self, images)

    monkeypatch.setattr(redaction, 'pictures', pictures)
    rig.serving.deposit(request(), 0)
    rig.step()
    assert threads == []
    told.recorder.writer.drain()
    assert len(threads) == 1


@pytest.mark.parametrize('ours', [True, False])
def test_a_prefix_is_told_with_whose_it_is(told, ours):
    rig = Rig(watch=told.watch, supports_rtc=True)
    rig.open()
    policy = rig.serving.served.fingerprint if ours else 'other@1'
    prefixed = replace(
        OBSERVATION, prefix_policy=policy, prefix_robot=ROWS[:2], prefix_model=ROWS[:2]
    )
    rig.serving.deposit(wire_observation.encode(prefixed), 0)
    rig.step()
    (record,) = told.read('request')
    assert (record['prefix_policy'], record['prefix_ignored']) == (policy, not ours)


def test_sessions_come_and_go_by_name(told):
    rig = Rig(watch=told.watch)
    session = rig.open()
    rig.open()
    rig.serving.end([session], 'client_gone')
    states = told.read('state')
    assert [(s['of'], s['from'], s['to'], s.get('why')) for s in states] == [
        ('session', 'closed', 'open', None),
        ('session', 'open', 'closed', 'client_gone'),
    ]
    assert {(s['client'], s['session_epoch']) for s in states} == {('robot_1', 7)}


def test_policies_states_and_parameters_are_told(told):
    rig = Rig(watch=told.watch)
    rig.watch.stood('inactive', 'active', '')
    rig.watch.stood('active', 'active', 'nothing new')
    rig.watch.serves(rig.serving.served)
    rig.watch.serves(None)
    rig.watch.changed(replace(told.parameters, max_sessions=3, default_task='pick'))
    rig.watch.changed(replace(told.parameters, max_sessions=3, default_task='pick'))
    (state,) = told.read('state')
    assert (state['of'], state['from'], state['to']) == ('server', 'inactive', 'active')
    served, none = told.read('policies')
    assert served['policies'] == [
        {'slot': 'a', 'model_id': 'fake', 'model_hash': '0123456789abcdef'}
    ]
    assert none['policies'] == []
    changes = {r['name']: (r['old'], r['new']) for r in told.read('parameter')}
    assert changes == {'max_sessions': (16, 3), 'default_task': ('', 'pick')}


def test_the_end_waits_for_those_who_still_tell_something(told):
    rig, stop = Rig(watch=told.watch), threading.Event()
    rig.open()

    class Late:
        """A thread that is still at work."""

        def join(self, timeout_s: float) -> None:
            assert timeout_s > 0
            rig.serving.deposit(b'', 0)
            rig.serving.deposit(request(), 0)
            rig.step()

    stop.set()
    told.recorder.run(stop, [Late()])
    kinds = [record['kind'] for record in told.read()]
    assert kinds == ['header', 'state', 'request', 'drop', 'footer']


def test_a_server_that_wants_no_trace_has_none():
    assert make_recorder(ServerParameters(), '/s', Statistics(), clock=int, tell=print) is None
    rig = Rig(watch=lambda _: Watch(), state_class=StateClass.RECURRENT)
    session = rig.open()
    rig.serving.deposit(request(), 0)
    (chunk,) = rig.step()
    rig.serving.end([session], 'gone')
    assert isinstance(chunk, Chunk)
    assert chunk.status == Status.OK

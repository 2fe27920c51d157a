# SPDX-License-Identifier: Apache-2.0
"""The edge's trace: what became of each request, what was dropped, and what changed."""

from __future__ import annotations

from collections import Counter
from functools import partial
import threading
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.edge_recorder_rig import Asking, audited, CLIENT, Notes, recorder_of
from support.edge.request_pipeline_rig import fill, hear, ROWS
from support.edge.requester_rig import ABC, CHUNK, MS, Simulation
from support.edge.robot_rig import SIM_ARM
from support.replacing import replace
from support.tools.trace_rig import Trace

from lerobot_serve.contract.data_path.execution_report import ExecutedRun, ExecutionReport
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Codec, Flag, Status
from lerobot_serve.edge.observability.trace_recorder import EdgeTraceRecorder, make_edge_recorder
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import ConnectionEvent
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve.edge.wiring import load_robot
from lerobot_serve.tools.audit.command_limits import read_bounds
from lerobot_serve.tools.audit.engine import CheckStatus
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.trace.format.records import RequestRecord

PICTURE = Image('front', 2, 2, b'abcd', codec=Codec.JPEG)


@pytest.fixture
def asking() -> Asking:
    return Asking()


# requests


def test_an_answer_that_is_played_is_told_with_all_there_is_of_it(asking):
    bench = asking.bench
    bench.observations.images = (PICTURE,)
    request = bench.send_request()
    bench.now_ns += 30 * MS
    times = {'queue_wait_ms': 1.0, 'processing_ms': 2.0, 'inference_ms': 4.0}
    hear(bench, request, slot='b', policy='act@b', seed=7, superseded=2, **times)
    (told,) = asking.requests
    # by the thread that writes
    (queued,) = (each for each in asking.notes.queued if isinstance(each, RequestRecord))
    assert (queued.images, queued.later.bytes) == (None, 4)
    (image,) = told.pop('images')
    assert (image['name'], len(image['sha256'])) == ('front', 64)
    assert (told.pop('request_bytes') > 200, told.pop('chunk_bytes') > 100) == (True, True)
    assert told == {
        'kind': 'request',
        'mono_ns': 30 * MS,
        'client_id': CLIENT,
        'session_id': f'{CLIENT}#00000000',
        'session_epoch': 0,
        'seq': 1,
        'episode_id': request.episode_id,
        'status': 'ok',
        'episode': 0,
        'routing': {'slot': 'b'},
        'server': '/policy_server',
        'policy': 'act@b',
        'seed': 7,
        **times,
        'round_trip_ms': 30.0,
        'chunk_range': [0, len(CHUNK)],
        'superseded': 2,
        'task': 'fold the towel',
    }


BAD = [
    ({'status': Status.POLICY_ERROR, 'status_text': 'no memory'}, 'policy_error', 'no memory'),
    ({'status': Status.TOO_LATE}, 'too_late', 'too_late'),
    ({'status': 77}, 'unknown_status', 'unknown_status'),
    ({'status': Status.NO_SESSION, 'status_text': 'who?'}, 'no_session', 'who?'),
    ({'robot': CHUNK * np.nan}, 'not_finite', 'the chunk holds NaN or infinity'),
    ({'robot': CHUNK[:, :2]}, 'wrong_shape', 'chunk of shape (2, 2), expected 3 columns'),
]


@pytest.mark.parametrize(('changes', 'status', 'reason'), BAD)
def test_an_answer_without_actions_is_told_with_its_status_and_its_words(
    asking, changes, status, reason
):
    bench = asking.bench
    request = bench.send_request()
    bench.now_ns += 5 * MS
    hear(bench, request, **{'robot': CHUNK[:0] if 'status' in changes else CHUNK, **changes})
    (told,) = asking.requests
    assert (told['status'], told['reason'], told['round_trip_ms']) == (status, reason, 5.0)
    incidents = [record['name'] for record in asking.notes.of('incident')]
    assert incidents == (['chunk_not_finite'] if status == 'not_finite' else [])
    assert asking.notes.of('policies') == []


def begin_episode(asking: Asking) -> None:
    asking.bench.pipeline.begin_episode(EpisodeRequest('wash'))


def time_out(asking: Asking) -> None:
    """Its time is over, and then its session: until then a late answer would count."""
    asking.bench.pipeline.mark_overdue()
    asking.session()


WAYS = [
    (time_out, 'timed_out', 'request_timeout'),
    (begin_episode, 'abandoned', 'episode_started'),
    (Asking.session, 'abandoned', 'session_lost'),
    (lambda asking: asking.bench.pipeline.close(), 'abandoned', 'stopped'),
]


@pytest.mark.parametrize(('way', 'status', 'reason'), WAYS)
def test_a_request_without_an_answer_is_told_once_with_why(asking, way, status, reason):
    bench = asking.bench
    request = bench.send_request()
    bench.now_ns += 5 * MS
    way(asking)
    # what comes later is no other end of it
    hear(bench, request)
    way(asking)
    (told,) = asking.requests
    assert (told['status'], told['reason'], told['mono_ns']) == (status, reason, 5 * MS)
    assert (told['seq'], told['episode_id']) == (1, request.episode_id)
    assert (told['task'], told['server']) == ('fold the towel', '/policy_server')
    assert 'round_trip_ms' not in told


def test_one_request_that_timed_out_makes_no_other_do_so(asking):
    bench = asking.bench
    bench.send_request()
    bench.pipeline.mark_overdue()
    bench.send_request()
    begin_episode(asking)
    told = [(each['seq'], each['status'], each['reason']) for each in asking.requests]
    assert told == [(1, 'timed_out', 'request_timeout'), (2, 'abandoned', 'episode_started')]


def test_an_answer_that_the_queue_refuses_is_told_as_given_up(asking):
    bench = asking.bench
    request = bench.send_request()
    bench.actions.clear()
    hear(bench, request, policy='act@b')
    (told,) = asking.requests
    assert (told['status'], told['reason']) == ('abandoned', 'rejected_chunk')
    assert (told['policy'], told['round_trip_ms']) == ('act@b', 0.0)
    assert asking.notes.of('policies') == []


def test_a_request_that_got_a_number_and_was_never_sent_is_told_too(asking):
    bench = asking.bench
    hear(bench, bench.send_request())
    bench.executed = ExecutionReport(
        runs=(ExecutedRun(1, 0, 0, CHUNK), ExecutedRun(1, 0, 2, CHUNK[:, :2]))
    )
    assert bench.pipeline.send_request(bench.settings) is None
    bench.executed = ExecutionReport()
    hear(bench, bench.send_request())
    told = [(r['seq'], r['status'], r.get('reason'), r.get('task')) for r in asking.requests]
    task = 'fold the towel'
    assert told == [
        (1, 'ok', None, task),
        (2, 'abandoned', 'unencodable', None),
        (3, 'ok', None, task),
    ]
    assert audited(asking.notes.records)['ended'] is CheckStatus.HOLDS


PREFIXES = [
    ('act@0', 'act@0', Flag.NONE, False, CheckStatus.HOLDS),
    ('act@0', 'act@1', Flag.PREFIX_IGNORED, True, CheckStatus.HOLDS),
    ('act@0', 'act@1', Flag.NONE, False, CheckStatus.VIOLATED),
]


@pytest.mark.parametrize(('before', 'answers', 'flags', 'ignored', 'outcome'), PREFIXES)
def test_a_prefix_is_told_as_the_audit_looks_at_it(
    asking, before, answers, flags, ignored, outcome
):
    bench = asking.bench
    fill(bench, policy=before)
    request = bench.send_request()
    hear(bench, request, ROWS, header=request.header.for_reply(flags), policy=answers)
    (told,) = asking.requests
    assert (told['prefix_policy'], told['prefix_ignored']) == (before, ignored)
    assert told['chunk_range'] == [0 if ignored else request.inference_delay_steps, len(ROWS)]
    assert audited(asking.notes.records)['prefix'] is outcome


def test_without_a_prefix_nothing_is_said_of_one(asking):
    hear(asking.bench, asking.bench.send_request())
    assert not {'prefix_policy', 'prefix_ignored'} & asking.requests[0].keys()


def test_another_policy_is_told_when_it_answers_first(asking):
    for slot, policy in [('a', 'act@0'), ('a', 'act@0'), ('b', 'act@0'), ('b', 'act@1')]:
        hear(asking.bench, asking.bench.send_request(), slot=slot, policy=policy)
    told = [
        (policy['slot'], policy['policy_hash'])
        for record in asking.notes.of('policies')
        for policy in record['policies']
    ]
    assert told == [('a', '0'), ('b', '0'), ('b', '1')]


def test_what_is_not_to_be_kept_is_not(asking):
    asking = Asking(images='none', instructions='hash')
    asking.bench.observations.images = (PICTURE,)
    hear(asking.bench, asking.bench.send_request())
    (told,) = asking.requests
    assert 'images' not in told
    assert told['task'].startswith('sha256:')


# drops, states, parameters


def test_a_drop_is_told_once_with_how_many(asking):
    recorder, notes = asking.recorder, asking.notes
    for totals in ({'late_chunk': 2}, {'late_chunk': 2}, {'late_chunk': 5, 'malformed': 1}):
        recorder.dropped(Counter(totals))
    told = [(r['reason'], r['count'], r['client_id']) for r in notes.of('drop')]
    assert told == [('late_chunk', 2, CLIENT), ('late_chunk', 3, CLIENT), ('malformed', 1, CLIENT)]
    # a drop names no request: it would count as its end
    assert not any('seq' in record for record in notes.of('drop'))


def test_what_the_connection_goes_through_is_told_with_its_reasons(asking):
    for event in (
        ConnectionEvent.CHUNK_MERGED,
        ConnectionEvent.REQUEST_FAILED,
        ConnectionEvent.REQUEST_FAILED,
        ConnectionEvent.SESSION_LOST,
        ConnectionEvent.INCOMPATIBLE,
    ):
        asking.bench.connection.handle(event, f'since {event.name}')
    told = [(r['component'], r['from'], r['to'], r['reason']) for r in asking.notes.of('state')]
    assert told == [
        ('connection', 'connecting', 'streaming', 'since CHUNK_MERGED'),
        ('connection', 'streaming', 'degraded', 'since REQUEST_FAILED'),
        ('connection', 'degraded', 'reconnecting', 'since SESSION_LOST'),
        ('connection', 'reconnecting', 'dead', 'since INCOMPATIBLE'),
    ]
    (incident,) = asking.notes.of('incident')
    assert (incident['name'], incident['reason']) == ('dead', 'since INCOMPATIBLE')


def test_parameters_that_change_are_told_as_they_are_redacted():
    notes = Notes()
    recorder = recorder_of(lambda: 9, notes, instructions='none')
    before = EdgeParameters(client_id=CLIENT)
    recorder.parameters_changed(replace(before, request_threshold_s=0.25, task='secret'))
    recorder.parameters_changed(replace(before, request_threshold_s=0.25, task='secret'))
    told = {r['name']: (r['old'], r['new']) for r in notes.of('parameter')}
    assert told == {'request_threshold_s': (0.5, 0.25), 'task': (None, None)}


# the run


def test_the_end_is_written_after_all_others_have_ended(tmp_path, asking):
    trace, dropped, stop = Trace(tmp_path), Counter(), threading.Event()
    recorder = recorder_of(lambda: 9, trace.writer)

    def say_goodbye(timeout_s: float) -> None:
        """As a thread does that takes its time when it is told to stop."""
        recorder.changed(
            asking.bench.connection.handle(ConnectionEvent.CHUNK_MERGED, 'the last words')
        )
        dropped['late_chunk'] += 3

    stop.set()
    recorder.run(stop, [SimpleNamespace(join=say_goodbye)], lambda: dropped)
    kinds = [(r['kind'], r.get('reason')) for r in trace.read()]
    assert kinds[1:] == [('state', 'the last words'), ('drop', 'late_chunk'), ('footer', None)]
    assert trace.writer.losses == {}


def make(folder: str, **given: object) -> EdgeTraceRecorder | None:
    parameters = EdgeParameters(trace_folder=folder, **given)
    return make_edge_recorder(
        parameters,
        load_robot(SIM_ARM),
        node='/arm/edge_controller',
        client_id='arm',
        clock=lambda: 5,
        log_warning=print,
    )


def test_nobody_who_does_not_want_a_trace_gets_one():
    assert make('') is None


def test_the_header_has_what_commands_are_judged_by(tmp_path):
    recorder = make(str(tmp_path), task='secret', trace_instructions='none')
    recorder.writer.drain()
    recorder.writer.close()
    (_, header), *_ = read_records(recorder.writer.path)
    assert (header['role'], header['node']) == ('edge', '/arm/edge_controller')
    given = header['parameters']
    assert (given['client_id'], given['task'], given['max_action_age_s']) == ('arm', None, 3.0)
    bounds = read_bounds(given['limits'])
    assert bounds[0].name == 'shoulder_pan.pos'
    assert bounds[0].step > 0


# whatever comes in whatever order, each request has one end, and the audit agrees


BAD_RUNS = ExecutionReport(runs=(ExecutedRun(1, 0, 0, CHUNK), ExecutedRun(1, 0, 2, CHUNK[:, :2])))


class World:
    """The pipeline as its requester uses it, and all requests that it was heard to send."""

    def __init__(self) -> None:
        self.asking = Asking()
        self.bench = self.asking.bench
        self.heard: list[Observation] = []
        self.bench.transport.on_request = self.heard.append
        self.numbers: list[tuple[int, int]] = []

    def ask(self, fails: str) -> None:
        session = self.bench.session
        if session.in_flight:
            return
        if fails == 'inputs':
            self.bench.observations.errors.append(Malformed('wrong_shape', 'bad'))
        self.bench.executed = BAD_RUNS if fails == 'encoding' else ExecutionReport()
        before = session.seq
        self.bench.pipeline.send_request(self.bench.settings)
        if session.seq > before:
            self.numbers.append((session.session_epoch, session.seq))

    def hear(self, back: int, kind: str) -> None:
        """Let an answer to one of the last requests arrive."""
        if back >= len(self.heard):
            return
        request = self.heard[-1 - back]
        policy = 'act@0' if kind == 'ignored' else 'act@1'
        flags = Flag.PREFIX_IGNORED if request.prefix_policy not in ('', policy) else Flag.NONE
        changes = {
            'failed': {'status': Status.POLICY_ERROR, 'robot': CHUNK[:0]},
            'nan': {'robot': CHUNK * np.nan},
            'foreign': {'client_id': 'robot_2'},
        }.get(kind, {})
        header = request.header.for_reply(flags)
        raw = reply_bytes(
            request, **{'robot': CHUNK, 'header': header, 'policy': policy, **changes}
        )
        raw = raw[:20] if kind == 'torn' else raw
        self.bench.pipeline.on_reply(raw, self.bench.now_ns, self.bench.settings)

    def end(self, how: str) -> None:
        pipeline = self.bench.pipeline
        if how == 'time_out':
            pipeline.mark_overdue()
        elif how == 'episode':
            pipeline.begin_episode(EpisodeRequest())
        elif how == 'session':
            self.asking.session()
        else:
            self.bench.actions.clear()


KINDS = ('played', 'ignored', 'failed', 'nan', 'foreign', 'torn')
STEPS = st.one_of(
    st.tuples(st.just('ask'), st.sampled_from(['', '', '', 'inputs', 'encoding'])),
    st.tuples(st.just('hear'), st.sampled_from([0, 0, 0, 1, 2]), st.sampled_from(KINDS)),
    st.tuples(st.just('end'), st.sampled_from(['time_out', 'episode', 'session', 'clear'])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 40)), max_size=60))
def test_each_request_has_one_end_and_the_audit_agrees(steps):
    world = World()
    for (what, *how), later_ms in steps:
        getattr(world, what)(*how)
        world.bench.now_ns += later_ms * MS
    world.bench.pipeline.close()
    told = [(r['session_epoch'], r['seq']) for r in world.asking.requests]
    assert told == world.numbers
    assert {(o.header.session_epoch, o.header.seq) for o in world.heard} <= set(told)
    found = audited(world.asking.notes.records)
    expected = CheckStatus.HOLDS if told else CheckStatus.NOT_JUDGED
    assert found['ended'] is expected
    assert found['one_in_flight'] in (CheckStatus.HOLDS, CheckStatus.NOT_JUDGED)
    assert found['prefix'] in (CheckStatus.HOLDS, CheckStatus.NOT_JUDGED)


ANSWERS = [{}, {'slot': 'b'}, {'status': Status.TOO_LATE}, {'status': Status.DRAINING}, None]
EVENTS = st.one_of(
    st.tuples(st.just('answers'), st.sampled_from(ABC), st.sampled_from(ANSWERS)),
    st.tuples(st.just('begin')),
    st.tuples(st.just('rest'), st.booleans()),
    st.tuples(st.just('away'), st.sampled_from(ABC)),
)


def happen(bench: Simulation, event: str, *details: object) -> None:
    if event == 'answers':
        bench.answers[details[0]] = details[1]
    elif event == 'begin':
        bench.requester.begin_episode(EpisodeRequest('wash'))
    elif event == 'rest':
        bench.requester.set_idle(idle=details[0])
    else:
        bench.transport.unavailable ^= {details[0]}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 4), EVENTS), max_size=12), st.floats(0.1, 5))
def test_whatever_servers_and_operators_do_no_request_is_without_an_end(events, seconds):
    notes = Notes()
    bench = Simulation(listener=recorder_of(lambda: bench.now_ns, notes), request_timeout_s=0.3)
    bench.play(seconds)
    for at_s, event in events:
        bench.at(at_s, partial(happen, bench, *event))
    bench.run(seconds)
    sent = [(o.header.session_epoch, o.header.seq) for _, _, o in bench.requests]
    assert [(r['session_epoch'], r['seq']) for r in notes.of('request')] == sent
    found = audited(notes.records)
    for check in ('ended', 'one_in_flight', 'prefix', 'whole', 'drops'):
        assert found[check] in (CheckStatus.HOLDS, CheckStatus.NOT_JUDGED), check


def test_a_request_in_flight_where_the_run_ends_is_told():
    notes = Notes()
    bench = Simulation(listener=recorder_of(lambda: bench.now_ns, notes), servers=('/a',))
    bench.answers['/a'] = None
    bench.run(0.5)
    (told,) = notes.of('request')
    assert (told['status'], told['reason']) == ('abandoned', 'stopped')


def test_what_is_spoilt_is_found():
    """Were an end left out, the audit would say so."""
    world = World()
    for _ in range(3):
        world.ask('')
        world.hear(0, 'played')
    records = world.asking.notes.records
    second = next(r for r in records if r.get('seq') == 2)
    records.remove(second)
    assert audited(records)['ended'] is CheckStatus.VIOLATED

# SPDX-License-Identifier: Apache-2.0
"""Whatever comes in whatever order, each request has one end, and the audit agrees."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from support.edge.edge_recorder_rig import Asking, audited, Notes, recorder_of
from support.edge.requester_rig import ABC, CHUNK, MS, Simulation

from lerobot_serve.contract.data_path.execution_report import ExecutedRun, ExecutionReport
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.edge.session.settings import EpisodeRequest
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve.tools.audit.engine import CheckStatus

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
        pipeline = self.bench.pipeline
        if pipeline.in_flight:
            return
        if fails == 'inputs':
            self.bench.observations.errors.append(Malformed('wrong_shape', 'bad'))
        self.bench.executed = BAD_RUNS if fails == 'encoding' else ExecutionReport()
        before = pipeline._tracker._seq
        pipeline.send_request(self.bench.settings)
        if pipeline._tracker._seq > before:
            self.numbers.append((pipeline._tracker.session_epoch, pipeline._tracker._seq))

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
            pipeline.begin_episode(EpisodeRequest(), notify_server=False)
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

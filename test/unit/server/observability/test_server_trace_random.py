# SPDX-License-Identifier: Apache-2.0
"""Whatever happens: each request of a session has one record, and each drop is told once."""

from __future__ import annotations

from collections import Counter
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.server.server_core_rig import request, Rig
from support.server.worker_rig import gives, ROWS

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.trace_recorder import make_trace_recorder
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.traces.reader import read_records

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
# endings that are no drop
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

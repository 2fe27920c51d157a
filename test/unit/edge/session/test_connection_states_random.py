# SPDX-License-Identifier: Apache-2.0
"""The connection under any sequence of events, from any thread."""

from __future__ import annotations

from itertools import count, pairwise
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, RuleBasedStateMachine

from lerobot_serve.edge.session.connection import (
    Connection,
    ConnectionEvent,
    ConnectionState,
    MAX_CHANGES_KEPT,
    TRANSITIONS,
)

S = 1_000_000_000


class AnyEvents(RuleBasedStateMachine):
    """What must hold whatever happens."""

    @initialize()
    def begin(self):
        self.now_ns = 0
        self.connection = Connection(lambda: self.now_ns)
        self.heard = [(ConnectionState.CONNECTING, None)]
        self.had_chunk = False
        self.lost_since_ns = None

    def note(self, event, change, before):
        after = self.connection.state
        assert (change is None) == (after == before)
        if change:
            assert (change.before, change.after, change.at_ns) == (before, after, self.now_ns)
            assert self.connection.since_ns == self.now_ns
            assert self.connection.changes[-1] == change
        self.had_chunk |= event == ConnectionEvent.MERGED and after == ConnectionState.STREAMING
        if before == ConnectionState.DEAD:
            assert after == (
                ConnectionState.CONNECTING
                if event == ConnectionEvent.REVIVED
                else ConnectionState.DEAD
            )
        if after == ConnectionState.CONNECTING != before:
            assert before == ConnectionState.DEAD
            self.had_chunk = False
        if after == ConnectionState.STREAMING != before:
            assert event == ConnectionEvent.MERGED
        if after == ConnectionState.DEAD != before:
            is_refused = before == ConnectionState.CONNECTING and event == ConnectionEvent.OFFLINE
            assert before == ConnectionState.RECONNECTING or is_refused
            assert event in (ConnectionEvent.OFFLINE, ConnectionEvent.VIOLATION)
        if after == ConnectionState.RECONNECTING != before:
            self.lost_since_ns = self.now_ns
        # playing on and standing still are told apart only by DRY
        if after == ConnectionState.STALLED != before:
            assert event == ConnectionEvent.DRY

    @rule(event=st.sampled_from(ConnectionEvent), reason=st.text(max_size=3))
    def happen(self, event, reason):
        before = self.connection.state
        self.note(event, self.connection.on(event, reason), before)

    @rule(step_ns=st.integers(0, 90 * S))
    def wait(self, step_ns):
        self.now_ns += step_ns

    @rule(wanted_ago_s=st.none() | st.floats(0, 5))
    def look_at_the_time(self, wanted_ago_s):
        before = self.connection.state
        wanted_ns = None if wanted_ago_s is None else self.now_ns - int(wanted_ago_s * S)
        change = self.connection.check_timers(
            wanted_since_ns=wanted_ns, degraded_after_s=1.0, max_offline_s=60.0
        )
        if change is None:
            assert self.connection.state == before
            assert (
                before != ConnectionState.RECONNECTING or self.now_ns - self.lost_since_ns < 60 * S
            )
            return
        self.note(change.event, change, before)
        if change.event == ConnectionEvent.OFFLINE:
            assert self.now_ns - self.lost_since_ns >= 60 * S
        else:
            assert change.event == ConnectionEvent.LATE
            assert wanted_ago_s >= 0.999

    @invariant()
    def without_a_chunk_there_is_no_way_on(self):
        if not self.had_chunk:
            assert self.connection.state in (ConnectionState.CONNECTING, ConnectionState.DEAD)

    @invariant()
    def what_is_kept_is_bounded_and_in_order(self):
        changes = self.connection.changes
        assert len(changes) <= MAX_CHANGES_KEPT
        for earlier, later in pairwise(changes):
            assert earlier.after == later.before
            assert earlier.at_ns <= later.at_ns
        assert not changes or changes[-1].after == self.connection.state


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class Slow(dict):
    """A table in which somebody else tells something while the next state is looked up."""

    def get(self, pair):
        table, self.get = TRANSITIONS, TRANSITIONS.get
        other = threading.Thread(target=self.connection.on, args=(ConnectionEvent.LOST, 'gone'))
        other.start()
        # without the lock it would be through by now
        other.join(0.2)
        self.other = other
        return table.get(pair)


def test_what_two_threads_tell_happens_one_after_the_other():
    ticks = count()
    table = Slow()
    connection = table.connection = Connection(lambda: next(ticks), table)
    connection.on(ConnectionEvent.MERGED, '')
    table.other.join(10)
    assert [(c.before, c.after) for c in connection.changes] == [
        (ConnectionState.CONNECTING, ConnectionState.STREAMING),
        (ConnectionState.STREAMING, ConnectionState.RECONNECTING),
    ]

# SPDX-License-Identifier: Apache-2.0
"""Draining and coming back: of a slot or a replica, by what it answers and by an operator."""

from __future__ import annotations

from math import isnan

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest
from support.router.dispatch_rig import status_of

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.router.replicas.health import Health, HealthState
from lerobot_serve.router.replicas.latency import (
    MIN_SAMPLES,
    RecentLatency,
    REFRESH_SAMPLES,
    WINDOW_SAMPLES,
)
from lerobot_serve.router.replicas.replica import (
    MAX_CONSECUTIVE_LATE,
    Replica,
    ReplicaState,
    SILENCE_FACTOR,
)

SECOND = 1_000_000_000
SUCCESSES = 2


def make(failures: int = 3) -> Health:
    return Health(failures, successes=SUCCESSES, first_probe_s=2.0, max_wait_s=10.0)


def drained(now_ns: int = 0) -> Health:
    health = make()
    health.mark_unhealthy('it failed', now_ns)
    return health


def test_failures_in_a_row_drain_and_the_last_one_is_named():
    health = make()
    assert not health.record_failure('timeout', 0)
    assert not health.record_failure('timeout', 0)
    assert health.record_failure('not_finite', 0)
    assert health.state is HealthState.UNHEALTHY
    assert health.reason == '3 consecutive failures, the last: not_finite'


def test_one_failure_that_is_enough_is_called_one():
    health = make(1)
    health.record_failure('timeout', 0)
    assert health.reason == '1 failure: timeout'


def test_clean_answers_in_a_row_bring_it_back_with_nothing_held_against_it():
    health = drained()
    assert not health.record_success()
    health.record_failure('timeout', 0)
    assert not health.record_success()
    assert health.record_success()
    assert (health.state, health.reason, health.failures) == (HealthState.HEALTHY, '', 0)


def test_a_trial_is_due_after_a_while_and_sooner_when_the_last_was_clean():
    health = drained(now_ns=5 * SECOND)
    assert not health.is_probe_due(7 * SECOND - 1)
    assert health.is_probe_due(7 * SECOND)
    health.probe_sent(7 * SECOND, SECOND)
    assert not health.is_probe_due(9 * SECOND - 1)
    health.record_success()
    assert health.is_probe_due(7 * SECOND)


def test_the_next_trial_waits_for_the_answer_to_the_last():
    health = drained()
    health.probe_sent(0, timeout_ns=30 * SECOND)
    assert not health.is_probe_due(30 * SECOND - 1)
    assert health.is_probe_due(30 * SECOND)


def test_the_wait_doubles_with_failing_trials_only_and_is_bounded():
    health = drained()
    waits = []
    for _ in range(5):
        health.record_failure('timeout', 0)
        health.probe_failed(0)
        waits.append(next(s for s in range(20) if health.is_probe_due(s * SECOND)))
    assert waits == [4, 8, 10, 10, 10]
    health.mark_unhealthy('again', 0)
    assert health.is_probe_due(2 * SECOND)


def test_an_operator_hurries_a_trial():
    health = drained(now_ns=5 * SECOND)
    health.probe_now()
    assert health.is_probe_due(5 * SECOND)


class Script(RuleBasedStateMachine):
    """In whatever order: back-off in bounds, clean answers in a row, the operator's word."""

    def __init__(self) -> None:
        super().__init__()
        self.health, self.now_ns = make(), 0
        self.failures = self.clean = self.failed_trials = 0

    @rule(ns=st.integers(0, 20 * SECOND))
    def time_passes(self, ns):
        self.now_ns += ns

    @rule()
    def answered(self):
        was_drained = self.health.state is HealthState.UNHEALTHY
        self.clean += 1
        self.failures = 0
        returned = self.health.record_success()
        assert returned == (was_drained and self.clean >= SUCCESSES)
        if returned:
            self.clean = 0

    @rule()
    def failed(self):
        was_healthy = self.health.is_healthy
        self.failures += 1
        self.clean = 0
        assert self.health.record_failure('x', self.now_ns) == (was_healthy and self.failures >= 3)
        if was_healthy and not self.health.is_healthy:
            self.failed_trials = 0

    @rule()
    def trial(self):
        if self.health.is_probe_due(self.now_ns):
            self.health.probe_sent(self.now_ns, SECOND)
            assert not self.health.is_probe_due(self.now_ns)

    @rule()
    def probe_failed(self):
        self.clean = 0
        self.health.probe_failed(self.now_ns)
        if self.health.state is HealthState.UNHEALTHY:
            self.failed_trials += 1
            wait_ns = min(2 * SECOND << self.failed_trials, 10 * SECOND)
            assert not self.health.is_probe_due(self.now_ns + wait_ns - 1)
            assert self.health.is_probe_due(self.now_ns + wait_ns)

    @rule()
    def restore(self):
        self.clean = self.failures = 0
        self.health.mark_healthy()

    @invariant()
    def it_is_probed_while_it_is_unhealthy(self):
        assert self.health.is_probe_due(self.now_ns + 10**12) == (
            self.health.state is HealthState.UNHEALTHY
        )
        assert bool(self.health.reason) == (not self.health.is_healthy)
        assert self.health.failures == self.failures


TestScript = Script.TestCase
TestScript.settings = settings(max_examples=25, stateful_step_count=40)


# latency


def test_few_answers_have_no_percentile():
    latency = RecentLatency()
    for _ in range(MIN_SAMPLES - 1):
        latency.add(5.0)
        assert isnan(latency.percentile_ms(95))
    latency.add(5.0)
    assert latency.percentile_ms(95) == 5.0


@given(st.lists(st.floats(0, 1e4), min_size=MIN_SAMPLES, max_size=3 * WINDOW_SAMPLES))
def test_percentiles_are_of_the_last_answers(values):
    latency = RecentLatency()
    for value in values:
        latency.add(value)
    seen = (
        len(values) - len(values) % REFRESH_SAMPLES
        if len(values) >= 2 * REFRESH_SAMPLES
        else MIN_SAMPLES
    )
    recent = sorted(values[max(0, seen - WINDOW_SAMPLES) : seen])
    assert latency.percentile_ms(0) == recent[0]
    assert latency.percentile_ms(100) == recent[-1]
    assert recent[0] <= latency.percentile_ms(50) <= latency.percentile_ms(95) <= recent[-1]


# replicas


def replica(**seen: object) -> Replica:
    there = Replica('/a1', 'a', make())
    if seen:
        there.report, there.is_available = status_of('a@1', **seen), True
    return there


def test_a_replica_says_in_words_why_it_is_not_ready():
    unheard, ready = replica(), replica(load=0.0)
    assert (unheard.state, ready.state) == (ReplicaState.UNKNOWN, ReplicaState.READY)
    assert 'no status received' in unheard.text
    assert ready.text == ''
    inactive = replica(active=False, text='not configured')
    assert (inactive.state, inactive.text) == (ReplicaState.UNAVAILABLE, 'not configured')
    ready.is_available = False
    assert (ready.state, ready.text) == (ReplicaState.UNAVAILABLE, 'server unavailable')
    suspect, stranger = replica(load=0.0), replica(load=0.0)
    suspect.health.mark_unhealthy('unresponsive: repeated late replies', 0)
    assert (suspect.state, suspect.text) == (
        ReplicaState.UNHEALTHY,
        'unresponsive: repeated late replies',
    )
    stranger.mismatch = 'another policy'
    assert (stranger.state, stranger.text) == (ReplicaState.POLICY_MISMATCH, 'another policy')
    assert [r.is_reachable for r in (unheard, inactive, suspect, stranger)] == [0, 0, 1, 0]


@pytest.mark.parametrize('state_class', StateClass)
def test_only_what_keeps_no_state_may_be_asked_anywhere(state_class):
    stateless = state_class in (StateClass.CHUNK_STATELESS, StateClass.NEEDS_HISTORY)
    assert replica(state_class=state_class).is_stateless == stateless
    assert not replica().is_stateless


def test_silence_takes_several_late_answers_and_a_while_without_any():
    there = replica(load=0.0)
    there.request_sent(100 * SECOND)
    there.request_sent(102 * SECOND)
    late_ns = 100 * SECOND + SILENCE_FACTOR * SECOND
    assert [there.record_late(SECOND, late_ns) for _ in range(MAX_CONSECUTIVE_LATE)] == [0, 0, 1]
    there.reply_received()
    assert not any(there.record_late(SECOND, late_ns + 9 * SECOND) for _ in range(10))


def test_who_was_idle_is_not_silent():
    there = replica(load=0.0)
    there.request_sent(0)
    there.reply_received()
    for _ in range(10):
        there.request_sent(100 * SECOND)
    assert not any(there.record_late(SECOND, 101 * SECOND) for _ in range(10))


def test_pressure_is_how_full_and_how_busy():
    there = replica(load=0.5, max_sessions=4)
    there.preferring_sessions = 2
    assert there.placement_load == 1.0
    assert replica(load=0.25, max_sessions=0).placement_load == 0.25
    assert replica().placement_load == 0.0

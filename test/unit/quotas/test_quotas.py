# SPDX-License-Identifier: Apache-2.0
"""
A robot gets its quota and no more, at any pattern of requests; others are not held back by it.
"""

from __future__ import annotations

import math
import threading

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, RuleBasedStateMachine
import pytest

from lerobot_serve import quotas as quotas_module
from lerobot_serve.quotas import parse_quotas, Quotas, Resource, TokenBucket

SECOND = 10**9
TEN = 'robot *: 10 requests/s'


def make(*lines: str, burst_s: float = 1.0) -> Quotas:
    return Quotas(parse_quotas(lines), burst_s)


def flood(
    quotas: Quotas,
    client: str,
    seconds: float,
    rate: float,
    request_bytes: int = 0,
    begin_s: float = 0.0,
) -> int:
    """Return how many of steady requests are admitted."""
    times = (int((begin_s + number / rate) * SECOND) for number in range(int(seconds * rate)))
    return sum(quotas.admit(client, request_bytes, time_ns) is None for time_ns in times)


def test_without_rules_everything_is_admitted():
    assert flood(make(), 'robot', 1.0, 10_000, 10**9) == 10_000
    Quotas().charge('robot', math.inf, 0)


def test_a_robot_within_its_quota_is_never_refused():
    assert flood(make(TEN), 'robot', 60, 10) == 600


def test_a_flood_gets_the_quota_and_its_burst():
    assert flood(make(TEN), 'robot', 60, 1000) == pytest.approx(610, abs=2)


def test_a_flood_takes_nothing_from_others():
    quotas = make(TEN)
    assert flood(quotas, 'flood', 10, 1000) < 120
    assert flood(quotas, 'robot', 10, 10) == 100


def test_robots_of_a_group_share_one_budget():
    quotas = make('group lab_*: 10 requests/s')
    admitted = 0
    for number in range(1000):
        for name in ('lab_1', 'lab_2'):
            admitted += quotas.admit(name, 1, number * SECOND // 100) is None
    assert admitted == pytest.approx(110, abs=2)
    assert flood(quotas, 'shop_1', 10, 100) == 1000


def test_each_matching_group_and_the_first_rule_of_robots_count():
    quotas = make('robot lab_*: 2 requests/s', 'robot *: 50 requests/s', 'group *: 5 requests/s')
    assert flood(quotas, 'lab_1', 10, 100) == pytest.approx(22, abs=1)
    # what the group got meanwhile is used up but for its burst
    assert flood(quotas, 'shop_1', 10, 100, begin_s=10) == pytest.approx(55, abs=1)


def test_bytes_are_counted_also_of_a_request_that_is_larger_than_the_burst():
    quotas = make('robot *: 1 MB/s')
    assert quotas.admit('robot', 5_000_000, 0) is None
    refusal = quotas.admit('robot', 1, 0)
    assert refusal and refusal.resource is Resource.MEGABYTES
    assert refusal.retry_after_s == pytest.approx(4.0)
    assert quotas.admit('robot', 1, int(3.9 * SECOND)) is not None
    assert quotas.admit('robot', 1, int(4.1 * SECOND)) is None


def test_inference_is_charged_afterwards():
    quotas = make('robot *: 100 inference_ms/s')
    assert quotas.admit('robot', 1, 0) is None
    quotas.charge('robot', 350.0, 0)
    refusal = quotas.admit('robot', 1, 0)
    assert refusal and refusal.retry_after_s == pytest.approx(2.5)
    assert quotas.admit('robot', 1, int(2.6 * SECOND)) is None


@pytest.mark.parametrize('inference_ms', [math.nan, -1.0, 0.0, -math.inf])
def test_a_nonsensical_time_is_not_charged(inference_ms):
    quotas = make('robot *: 100 inference_ms/s')
    quotas.charge('robot', inference_ms, 0)
    assert quotas.admit('robot', 1, 0) is None


@pytest.mark.parametrize('inference_ms', [math.inf, 1e30])
def test_an_endless_time_does_not_bar_a_robot_for_good(inference_ms):
    quotas = make('robot *: 100 inference_ms/s')
    quotas.charge('robot', inference_ms, 0)
    refusal = quotas.admit('robot', 1, 0)
    assert refusal and refusal.retry_after_s < 601


def test_a_refusal_names_the_rule_and_is_counted():
    quotas = make('robot r*: 2 requests/s, 100 MB/s')
    assert flood(quotas, 'robot', 1, 100) < 100
    refusal = quotas.admit('robot', 1, SECOND)
    assert refusal is None or refusal.text.startswith('quota of robot r* is used up (2 requests/s')
    assert quotas.refusals()['robot r*', 'requests/s'] >= 96


def test_a_refused_request_uses_nothing_up():
    quotas = make('robot *: 1 requests/s, 1 MB/s')
    assert quotas.admit('robot', 500_000, 0) is None
    for _ in range(1000):
        assert quotas.admit('robot', 900_000, 0) is not None
    assert quotas.admit('robot', 900_000, int(1.01 * SECOND)) is None


def test_a_change_of_the_rules_begins_anew_and_the_same_ones_change_nothing():
    quotas = make(TEN)
    flood(quotas, 'robot', 1, 100)
    assert quotas.admit('robot', 1, SECOND // 1000)
    quotas.apply(parse_quotas([TEN]), 1.0)
    assert quotas.admit('robot', 1, SECOND // 1000)
    quotas.apply(parse_quotas(['robot *: 20 requests/s']), 1.0)
    assert quotas.admit('robot', 1, SECOND // 1000) is None
    quotas.apply((), 1.0)
    assert flood(quotas, 'robot', 1, 1000) == 1000


@pytest.mark.parametrize('scope', ['robot', 'group'])
def test_a_burst_that_is_set_live_holds_at_once(scope):
    quotas = make(f'{scope} *: 10 requests/s', burst_s=1.0)
    assert flood(quotas, 'robot', 0.5, 10_000) == pytest.approx(15, abs=1)
    quotas.apply(quotas.settings[0], 5.0)
    assert flood(quotas, 'robot', 0.5, 10_000, begin_s=1.0) == pytest.approx(55, abs=1)


def test_a_robot_that_asks_is_not_forgotten_before_one_that_does_not(monkeypatch):
    monkeypatch.setattr(quotas_module, 'ROBOTS_LIMIT', 3)
    quotas = make('robot *: 10 requests/s')
    for name in ('first', 'second', 'third', 'first', 'fourth'):
        quotas.admit(name, 1, 0)
    assert list(quotas._robots) == ['third', 'first', 'fourth']


def test_budgets_of_many_robots_are_bounded(monkeypatch):
    monkeypatch.setattr(quotas_module, 'ROBOTS_LIMIT', 10)
    quotas = make(TEN)
    for number in range(100):
        quotas.admit(f'robot_{number}', 1, 0)
    assert len(quotas._robots) == 10


def test_new_names_do_not_help_a_robot_out_of_its_debts(monkeypatch):
    monkeypatch.setattr(quotas_module, 'ROBOTS_LIMIT', 10)
    quotas = make('robot *: 1 requests/s, 1 MB/s')
    quotas.admit('debtor', 50_000_000, 0)
    for number in range(100):
        quotas.admit(f'robot_{number}', 1, 0)
        quotas.charge(f'robot_{number}', 1.0, SECOND)
    assert quotas.admit('debtor', 1, SECOND) is not None


def test_threads_admit_no_more_than_the_quota():
    quotas, admitted = make('robot *: 100 requests/s', burst_s=5.0), []

    def ask() -> None:
        admitted.append(sum(quotas.admit('robot', 1, 0) is None for _ in range(2000)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 500


@given(
    st.floats(1e-3, 1e6),
    st.floats(0.1, 100.0),
    st.lists(st.tuples(st.integers(0, 10**10), st.floats(0, 1e6)), max_size=50),
)
def test_the_time_that_a_bucket_names_is_enough_and_never_negative(rate, burst_s, uses):
    bucket, now_ns = TokenBucket(rate, rate * burst_s, 0), 0
    for passed_ns, tokens in uses:
        now_ns += passed_ns
        wait_s = bucket.wait_s(now_ns)
        assert wait_s >= 0 and math.isfinite(wait_s)
        now_ns += math.ceil(wait_s * SECOND * (1 + 1e-9))
        assert bucket.wait_s(now_ns) == 0.0
        bucket.take(tokens, now_ns)


def test_times_in_another_order_give_nothing_twice():
    bucket = TokenBucket(1.0, 1.0, 0)
    bucket.take(11.0, 0)
    for now_ns in (5 * SECOND, 0, 5 * SECOND, 3 * SECOND, 5 * SECOND):
        assert bucket.wait_s(now_ns) == pytest.approx(5.0)


class QuotaMachine(RuleBasedStateMachine):
    """Robots ask at any times; over any span from the begin none gets more than it may."""

    RATE, BURST_S, MEGABYTES = 5.0, 2.0, 3.0
    ROBOTS = ('lab_1', 'lab_2', 'shop_1')

    @initialize()
    def begin(self):
        self.now_ns = 0
        self.quotas = make(
            f'robot *: {self.RATE} requests/s, {self.MEGABYTES} MB/s',
            'group lab_*: 7 requests/s',
            burst_s=self.BURST_S,
        )
        self.admitted = dict.fromkeys(self.ROBOTS, 0)
        self.bytes = dict.fromkeys(self.ROBOTS, 0)
        self.largest = 0

    @rule(robot=st.sampled_from(ROBOTS), size=st.integers(1, 4_000_000))
    def ask(self, robot, size):
        refusal = self.quotas.admit(robot, size, self.now_ns)
        if refusal is None:
            self.admitted[robot] += 1
            self.bytes[robot] += size
            self.largest = max(self.largest, size)
        else:
            assert refusal.retry_after_s > 0

    @rule(passed_ns=st.integers(0, 3 * SECOND))
    def wait(self, passed_ns):
        self.now_ns += passed_ns

    @invariant()
    def none_gets_more(self):
        if not hasattr(self, 'admitted'):
            return
        span_s = self.now_ns / 1e9 + self.BURST_S
        for robot in self.ROBOTS:
            assert self.admitted[robot] <= self.RATE * span_s + 1
            assert self.bytes[robot] / 1e6 <= self.MEGABYTES * span_s + self.largest / 1e6
        assert self.admitted['lab_1'] + self.admitted['lab_2'] <= 7 * span_s + 1


TestQuotaMachine = QuotaMachine.TestCase

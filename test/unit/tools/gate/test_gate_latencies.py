# SPDX-License-Identifier: Apache-2.0
"""The p99 of inference times: what a policy takes counts, what a busy machine adds does not."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.tools.gate.motion import KEPT, Latencies, REPETITIONS


def measured(values_ms: list[float]) -> Latencies:
    """Return times whose requests are their numbers."""
    found = Latencies()
    for number, value_ms in enumerate(values_ms):
        found.add(value_ms, str(number).encode(), {})
    return found


def test_without_a_request_nothing_is_known():
    found = Latencies()
    assert found.settle(lambda *_: 0.0) == 0
    assert math.isnan(found.p99_ms)


def test_what_the_machine_added_is_measured_again_and_does_not_count():
    # a tenth of 500 requests met a busy machine
    values_ms = [2.0 + 30.0 * (number % 10 == 0) for number in range(500)]
    found = measured(values_ms)
    assert found.p99_ms == 32.0
    assert found.settle(lambda *_: 2.0) >= 50
    assert found.p99_ms == 2.0


def test_a_request_that_is_slow_again_counts():
    slow = {b'7': 40.0, b'70': 41.0, b'99': 42.0, b'100': 39.0}
    values_ms = [slow.get(str(number).encode(), 2.0) for number in range(300)]
    found = measured(values_ms)
    before_ms = found.p99_ms
    # all of them, and none of the others
    assert found.settle(lambda request, _: slow.get(request, 2.0)) == 4
    assert found.p99_ms == before_ms >= 39.0


def test_the_smallest_of_all_times_counts():
    again_ms = iter([90.0, 9.0, 8.0])
    found = measured([2.0] * 99 + [80.0])
    found.settle(lambda request, _: next(again_ms) if request == b'99' else 2.0)
    assert max(found.values_ms) == 8.0


def test_a_request_that_fails_when_it_is_measured_again_keeps_its_time():
    found = measured([2.0] * 99 + [80.0])
    found.settle(lambda *_: math.inf)
    assert found.values_ms == [2.0] * 99 + [80.0]


def test_no_more_than_the_kept_ones_are_measured():
    calls = []
    found = measured([50.0] * 5000)

    def measure(request: bytes, _: dict) -> float:
        calls.append(request)
        return 1.0

    assert found.settle(measure) == KEPT
    assert len(calls) == KEPT * REPETITIONS
    # the others still decide: never less than what was measured
    assert found.p99_ms == 50.0


@given(
    st.lists(st.floats(0.1, 1e3), min_size=1, max_size=400),
    st.lists(st.floats(0.0, 1e3), min_size=400, max_size=400),
)
def test_it_never_adds_and_never_goes_below_what_the_policy_takes(policy_ms, machine_ms):
    noisy = [own + added for own, added in zip(policy_ms, machine_ms, strict=False)]
    found = measured(noisy)
    before_ms = found.p99_ms
    found.settle(lambda request, _: policy_ms[int(request)])
    assert found.p99_ms <= before_ms
    assert found.p99_ms >= float(np.percentile(policy_ms, 99)) - 1e-9
    if len(noisy) <= KEPT:
        assert found.p99_ms == pytest.approx(float(np.percentile(policy_ms, 99)))

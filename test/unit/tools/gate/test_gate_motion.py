# SPDX-License-Identifier: Apache-2.0
"""Figures of a gate: how a policy moves, how long it takes, and the record of both."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import MsgType, Status
from lerobot_serve.router.canary.gate_record import read_record, TEXT_LIMIT, write_record
from lerobot_serve.router.shadow.remote_cage import RemoteCage
from lerobot_serve.tools.gate import motion
from lerobot_serve.tools.gate.figures import GateFigures, TaskFigures
from lerobot_serve.tools.gate.limits import GateLimits
from lerobot_serve.tools.gate.motion import (
    KEPT,
    Latencies,
    PolicyMotion,
    REPETITIONS,
    shared_motion,
    Velocities,
    velocity_distances,
)
from lerobot_serve.tools.gate.report import gate_report, make_record, WORDS
from lerobot_serve.tools.gate.rules import Gate

HEADER = Header(1, 1, 1, 1, 1, MsgType.CHUNK)


def walk(seed: int, rows: int = 400, scale: float = 1.0) -> np.ndarray:
    steps = np.random.default_rng(seed).normal(scale=scale, size=(rows, 3))
    return np.cumsum(steps, axis=0).astype(np.float32)


def velocities(*chunks: np.ndarray) -> Velocities:
    found = Velocities()
    for rows in chunks:
        found.add(rows)
    return found


def test_the_distance_is_that_of_sorted_velocities_in_spreads():
    """Of samples of one size it is the mean distance of the sorted values."""
    old, new = velocities(walk(1)), velocities(walk(2, scale=1.7))
    expected = [
        np.abs(np.sort(a) - np.sort(b)).mean() / a.std()
        for a, b in zip(old.values.T, new.values.T, strict=True)
    ]
    assert velocity_distances(old, new) == pytest.approx(expected, rel=0.03)
    assert velocity_distances(old, old) == pytest.approx([0, 0, 0])


def test_an_action_that_never_moved_counts_once_it_moves():
    still = walk(1)
    still[:, 2] = 0.5
    moved = still.copy()
    moved[:, 2] += 0.1 * np.arange(len(moved))
    assert velocity_distances(velocities(still), velocities(moved))[2] > 10


def test_without_data_or_with_other_actions_there_is_no_distance():
    assert not len(velocity_distances(Velocities(), velocities(walk(1))))
    assert not len(velocity_distances(velocities(walk(1)[:1]), velocities(walk(1))))
    assert not len(velocity_distances(velocities(walk(1)[:, :2]), velocities(walk(1))))


@given(st.lists(st.integers(0, 40), max_size=60))
def test_thinning_keeps_every_nth_row(sizes):
    """However chunks are cut, the kept velocities are evenly spaced among all."""
    numbers, chunks = 0, []
    for size in sizes:
        steps = np.arange(numbers, numbers + size, dtype=np.float64)
        numbers += size
        chunks.append(np.concatenate(([0.0], np.cumsum(steps)))[:, None])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(motion, 'VELOCITIES_LIMIT', 50)
        found = velocities(*chunks)
    kept = found.values[:, 0] if len(found.values) else np.zeros(0)
    assert len(kept) <= 50 + 40
    stride = found._stride
    assert kept == pytest.approx(np.arange(0, numbers, stride), abs=1e-6)


def alike(parent: np.ndarray, candidate: np.ndarray) -> float:
    return shared_motion(parent, candidate).similarity


def test_similarity_is_the_cosine_of_motions():
    rows = walk(4, 20)
    assert alike(rows, rows) == pytest.approx(1.0)
    assert alike(rows, 2 * rows[:1] - rows) == pytest.approx(-1.0)
    assert alike(rows, rows[:10]) == pytest.approx(1.0)
    assert math.isnan(alike(rows[:1].repeat(5, 0), rows[:1].repeat(5, 0)))
    assert shared_motion(rows, rows[:, :2]) is None
    assert shared_motion(rows[:0], rows) is None
    # one that stands still is not like one that moves
    assert alike(rows, rows[:1].repeat(20, 0)) == 0.0


def test_a_large_motion_counts_more_than_trembling_at_the_target():
    found = TaskFigures()
    found.add(shared_motion(100 * walk(4, 20), 100 * walk(4, 20)))
    for seed in range(50):
        found.add(shared_motion(0.01 * walk(seed, 20), 0.01 * walk(seed + 100, 20)))
    assert found.chunks == 51
    assert found.similarity > 0.99


def cage() -> RemoteCage:
    limit = ActionLimit('x', 'x', Motion.POSITION, -10.0, 10.0, max_step=0.5)
    return RemoteCage(MotionLimits((limit,), 1 / 30))


@pytest.mark.parametrize(('step', 'changed'), [(0.1, 0), (0.4, 0), (0.6, 1)])
def test_a_chunk_that_the_cage_would_change_is_counted(step, changed):
    found = PolicyMotion()
    rows = (step * np.arange(10, dtype=np.float32))[:, None]
    found.add(Chunk(HEADER, 'r', 'e', rows, rows, inference_ms=3.0), cage())
    assert (found.chunks, found.caged, found.changed) == (1, 1, changed)
    # limits of another robot say nothing
    found.add(Chunk(HEADER, 'r', 'e', walk(1), walk(1)), cage())
    found.add(Chunk(HEADER, 'r', 'e', rows, rows), None)
    assert (found.chunks, found.caged) == (3, 1)


@pytest.mark.parametrize(('jump', 'changed'), [(0.0, 0), (0.4, 0), (-0.6, 1)])
def test_a_jump_into_a_chunk_is_seen(jump, changed):
    found = PolicyMotion()
    rows = (0.1 * np.arange(10, dtype=np.float32))[:, None]
    before = np.full((1, 1), -jump, np.float32)
    found.add(Chunk(HEADER, 'r', 'e', rows, rows), cage(), before)
    assert found.changed == changed


def test_a_failed_reply_is_no_motion():
    found = PolicyMotion()
    found.add(Chunk(HEADER, 'r', 'e', status=Status.NOT_FINITE, status_text='NaN'), cage())
    assert (found.failed, found.first_failure) == (1, 'NaN')
    assert np.isnan(found.latencies.p99_ms)


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


S, P = 'safety', 'performance'
GATES = (
    Gate('cage', S, 'passed', 0.5, 2.0, 'few'),
    Gate('success', P, 'failed', 0.2, 0.1, 'worse by 20 points'),
    Gate('latency', P, 'unmeasured', None, 1.5, 'the parent was not run'),
)


def figures(episodes: int = 40) -> GateFigures:
    return GateFigures('new@11', 'old@22', episodes=episodes, requests=400, digest='d' * 64)


def record_of(verdict: str, gates=GATES, found=None, **overrides: str):
    return make_record(
        found or figures(),
        gates,
        verdict,
        GateLimits(),
        overrides=overrides,
        by='kim@lab',
        made='2026-01-01',
    )


@pytest.mark.parametrize('verdict', WORDS)
def test_a_router_reads_what_was_written(verdict, tmp_path):
    made = record_of(verdict)
    found = read_record(write_record(tmp_path, made))
    assert found == made
    assert (found.verdict, found.candidate, found.parent) == (verdict, 'new@11', 'old@22')
    # JSON has no NaN
    assert [row['value'] for row in found.gates] == [0.5, 0.2, None]
    report = gate_report(found, figures(), GATES)
    assert report.as_text().splitlines()[-1].startswith(WORDS[verdict])
    assert report.status == {'passed': 0, 'overridden': 0, 'too_few': 4}.get(verdict, 3)


UNMEASURED = Gate('cage', S, 'unmeasured', None, 2.0, 'no limits')
# only an override that was needed is recorded
NEEDED, MORE = {'success': 'a new gripper'}, {'latency': 'slow is fine'}
RECORDS = {
    'held': record_of('held'),
    'passed': record_of('passed', GATES[:1]),
    'refused': record_of('refused', (UNMEASURED,)),
    'too few': record_of('too_few', found=figures(12)),
    'overridden': record_of('overridden', **NEEDED, **MORE),
}


@pytest.mark.golden
def test_what_is_said_of_a_record(golden):
    texts = [
        f'{name}: {record.text}\n{gate_report(record, figures(), GATES).as_text()}'
        for name, record in RECORDS.items()
    ]
    golden.holds('gate_records.txt', '\n\n'.join(texts) + '\n')
    assert RECORDS['overridden'].overrides == (('success', 'a new gripper', 'kim@lab'),)


def test_a_long_text_fits_a_record(tmp_path):
    gate = Gate('cage', S, 'failed', 9.0, 2.0, 'ä' * TEXT_LIMIT)
    made = record_of('refused', (gate,))
    assert len(made.text.encode()) <= TEXT_LIMIT
    assert read_record(write_record(tmp_path, made)) == made

# SPDX-License-Identifier: Apache-2.0
"""The gates of a new policy: what blocks, what a person may override, what would be enough."""

from __future__ import annotations

from itertools import product
import math

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
import numpy as np
import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.gate.figures import GateFigures, TaskFigures
from lerobot_serve.tools.gate.limits import GateLimits
from lerobot_serve.tools.gate.motion import Latencies, PolicyMotion
from lerobot_serve.tools.gate.rules import (
    evaluate,
    Gate,
    not_worse_evidence,
    PERFORMANCE_GATES,
    SAFETY_GATES,
    verdict,
    VERDICTS,
)

LIMITS = GateLimits()


def latencies(value_ms: float, count: int) -> Latencies:
    found = Latencies()
    for _ in range(count):
        found.add(value_ms, b'', {})
    return found


SLOW = latencies(16.0, 9)


def motion(**changes: object) -> PolicyMotion:
    found = PolicyMotion(chunks=100, caged=100, latencies=latencies(10.0, 100))
    rng = np.random.default_rng(3)
    for _ in range(20):
        found.velocities.add(np.cumsum(rng.normal(size=(30, 2)), axis=0).astype(np.float32))
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def task_of(
    cosine: float,
    chunks: int,
    parent: tuple[int, int] = (0, 0),
    candidate: tuple[int, int] = (0, 0),
) -> TaskFigures:
    return TaskFigures(chunks, chunks * cosine, chunks, chunks, parent, candidate)


def figures(**changes: object) -> GateFigures:
    """Return figures of a candidate that passes every gate."""
    task = task_of(0.99, 100, (80, 20), (95, 5))
    values = {
        'candidate': motion(),
        'parent': motion(),
        'candidate_bytes': 10**9,
        'parent_bytes': 10**9,
        'tasks': {'fold': task},
        'episodes': 100,
        'requests': 100,
    }
    return GateFigures('new@1', 'old@2', **(values | changes))


def gate_of(name: str, found: GateFigures, limits: GateLimits = LIMITS) -> Gate:
    return next(gate for gate in evaluate(found, limits) if gate.name == name)


def test_every_combination_has_a_verdict():
    assert set(VERDICTS) == set(product((False, True), repeat=4))


@pytest.mark.parametrize('row', VERDICTS, ids=str)
def test_no_reason_helps_an_unsafe_policy_and_few_episodes_admit_none(row):
    enough, is_unsafe, is_held, is_overridden = row
    found = VERDICTS[row]
    if is_unsafe:
        assert found == 'refused'
    elif not enough:
        assert found == 'too_few'
    elif is_held:
        assert found == ('overridden' if is_overridden else 'held')
    else:
        assert found == 'passed'


def test_the_names_of_gates_are_those_of_their_kinds():
    gates = evaluate(figures(), LIMITS)
    assert tuple(g.name for g in gates if g.kind == 'safety') == SAFETY_GATES
    assert tuple(g.name for g in gates if g.kind == 'performance') == PERFORMANCE_GATES


def test_one_that_is_as_good_passes_all():
    gates = evaluate(figures(), LIMITS)
    assert {gate.state for gate in gates} == {'passed'}
    assert verdict(gates, 100, LIMITS, ()) == 'passed'
    assert verdict(gates, 29, LIMITS, ()) == 'too_few'


WORSE_TASK = {
    'easy': task_of(0.99, 100, (90, 10), (95, 5)),
    'hard': task_of(0.99, 100, (90, 10), (2, 30)),
}


def fast() -> PolicyMotion:
    found = motion()
    found.velocities.add(np.cumsum(np.full((2000, 2), 9.0), axis=0).astype(np.float32))
    return found


# gate, and what the figures have in the place of what passes; then those that are not measured
FAILED = [
    ('finite', {'candidate': motion(failed=1, first_failure='NaN')}),
    ('cage', {'candidate': motion(changed=3)}),
    ('velocity', {'candidate': fast()}),
    ('tasks', {'tasks': WORSE_TASK}),
    ('latency', {'candidate': motion(latencies=SLOW)}),
    ('memory', {'candidate_bytes': 1501 * 10**6}),
    ('similarity', {'tasks': {'': task_of(0.84, 100)}}),
    ('task_similarity', {'tasks': {'a': task_of(0.99, 1000), 'b': task_of(0.8, 20)}}),
    ('success', {'tasks': {'': task_of(0.99, 100, (80, 20), (15, 5))}}),
]
UNMEASURED = [
    ('finite', {'candidate': PolicyMotion()}),
    ('cage', {'candidate': motion(caged=0)}),
    ('cage', {'candidate': motion(caged=99)}),
    ('cage', {'parent': motion(changed=60)}),
    ('velocity', {'candidate': PolicyMotion()}),
    ('latency', {'is_parent_run': False}),
    ('memory', {'parent_bytes': 0}),
    ('success', {'tasks': {'': task_of(0.9, 10, (9, 1))}}),
    ('similarity', {'tasks': {}}),
    ('task_similarity', {'tasks': {'': task_of(0.9, 10)}}),
]


@pytest.mark.golden
def test_what_blocks_says_what_is_allowed_and_only_safety_needs_to_be_measured(golden):
    failed, unmeasured = (
        [gate_of(name, figures(**changes)) for name, changes in cases]
        for cases in (FAILED, UNMEASURED)
    )
    assert all(gate.state == 'failed' and gate.blocks for gate in failed)
    assert all(gate.state == 'unmeasured' and gate.value is None for gate in unmeasured)
    assert all(gate.blocks is (gate.kind == 'safety') for gate in unmeasured)
    golden.holds('gates.txt', ''.join(f'{g.name}: {g.text}\n' for g in (*failed, *unmeasured)))


def test_small_policies_are_not_compared_by_size():
    assert not gate_of('memory', figures(candidate_bytes=570_000, parent_bytes=230_000)).blocks


def test_the_cage_compares_with_a_parent_that_trips_it_often():
    often = motion(changed=40)
    assert gate_of('cage', figures(candidate=motion(changed=44), parent=often)).limit == 44.0
    assert not gate_of('cage', figures(candidate=motion(changed=44), parent=often)).blocks
    assert gate_of('cage', figures(candidate=motion(changed=45), parent=often)).blocks


def test_a_reason_lets_performance_pass_and_each_gate_needs_one():
    gates = evaluate(
        figures(candidate_bytes=9 * 10**9, candidate=motion(latencies=latencies(90.0, 1))), LIMITS
    )
    assert verdict(gates, 100, LIMITS, ()) == 'held'
    assert verdict(gates, 100, LIMITS, ('memory',)) == 'held'
    assert verdict(gates, 100, LIMITS, ('memory', 'latency')) == 'overridden'


@given(st.sets(st.sampled_from(SAFETY_GATES), min_size=1), st.integers(0, 200))
def test_a_safety_gate_is_never_overridden(failed, episodes):
    gates = [
        replace(gate, state='failed') if gate.name in failed else gate
        for gate in evaluate(figures(), LIMITS)
    ]
    every = (*SAFETY_GATES, *PERFORMANCE_GATES)
    assert verdict(gates, episodes, LIMITS, every) == 'refused'


def test_success_is_shown_by_evidence_and_not_by_rates_alone():
    few = task_of(0.99, 100, (8, 2), (10, 0))
    assert gate_of('success', figures(tasks={'': few})).state == 'failed'
    many = task_of(0.99, 100, (160, 40), (195, 5))
    assert gate_of('success', figures(tasks={'': many})).state == 'passed'


@pytest.mark.slow
def test_the_evidence_that_one_is_not_worse_is_valid():
    """Exactly at the null, the candidate worse by the margin: at most 5 % ever reach 20 : 1."""
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(40):
        parent = int(rng.binomial(150, 0.8))
        good = np.cumsum(rng.random(300) < 0.7)
        wrong += any(
            not_worse_evidence(
                TaskFigures(parent=(parent, 150 - parent), candidate=(int(n), i + 1 - int(n))), 0.1
            )
            >= math.log(20)
            for i, n in enumerate(good)
        )
    assert wrong <= 6


@pytest.mark.parametrize(
    'values',
    [
        {'minimum_episodes': 29},
        {'cage_percent': 3.0},
        {'cage_ratio': 1.2},
        {'velocity_distance': 0.6},
        {'margin': 0.2},
        {'minimum_episodes': -1},
        {'cage_percent': 101.0},
        {'similarity': 1.5},
        {'margin': float('nan')},
        {'latency_ratio': float('inf')},
    ],
)
def test_limits_that_make_no_sense_are_refused(values):
    with pytest.raises(ParameterError, match='--'):
        GateLimits(**values)

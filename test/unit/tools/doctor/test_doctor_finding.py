# SPDX-License-Identifier: Apache-2.0
"""Findings of the doctor, the report of them, and the 20 % rule."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.tools.findings import listed

from lerobot_serve.tools.doctor.finding import (
    doctor_report,
    failure,
    Finding,
    FindingLevel,
    ok,
    skipped,
    summary,
    warning,
    WITH_REMEDY,
    worst_level,
)
from lerobot_serve.tools.doctor.machine import (
    check_capacity,
    check_forward_time,
    PolicySpeed,
    UTILISATION,
)

GROUPS = {
    'environment': [ok('ROS', 'jazzy'), warning('clock', 'jumped', 'set it')],
    'policy': [failure('loads', 'no weights', 'copy it'), skipped('speed', 'not known')],
}
TEXTS = st.text(min_size=1).filter(str.strip)


@given(st.sampled_from(FindingLevel), TEXTS, TEXTS)
def test_a_remedy_is_there_exactly_where_something_is_wrong(verdict, found, remedy):
    wrong = verdict in WITH_REMEDY
    assert Finding('name', verdict, found, remedy if wrong else '').verdict is verdict
    with pytest.raises(ValueError, match='remedy'):
        Finding('name', verdict, found, '' if wrong else remedy)


@pytest.mark.parametrize('empty', ['', ' \n'])
def test_no_finding_is_empty(empty):
    with pytest.raises(ValueError, match='a name and a text'):
        ok('name', empty)
    with pytest.raises(ValueError, match='a name and a text'):
        ok(empty, 'found')
    with pytest.raises(ValueError, match='must have a remedy'):
        failure('name', 'found', empty)


@pytest.mark.golden
def test_people_read_a_line_each_and_the_remedy_below_and_programs_one_object(golden):
    report = doctor_report(GROUPS)
    data = json.dumps(report.data, indent=1)
    golden.holds('doctor/report.txt', f'{report.as_text()}\n\n{data}\n')


def test_colours_change_nothing_but_colours():
    coloured = doctor_report(GROUPS).as_text(99)
    assert '\033[31mFAIL\033[0m' in coloured
    for code in (1, 31, 32, 33, 90, 0):
        coloured = coloured.replace(f'\033[{code}m', '')
    assert coloured == doctor_report(GROUPS).as_text()


def test_failures_and_warnings_are_always_counted():
    assert summary({'a': [ok('b', 'c'), ok('d', 'e')]}) == '0 failures, 0 warnings, 2 ok'


@given(st.text())
def test_nothing_that_was_found_disturbs_a_terminal(text):
    shown = doctor_report({'a': [warning('b', f'x{text}', f'y{text}')]}).as_text()
    assert len(shown.split('\n')) == 5
    assert shown.replace('\n', '').isprintable()


def test_the_worst_counts():
    assert worst_level(GROUPS) is FindingLevel.FAILURE
    assert worst_level({'environment': GROUPS['environment']}) is FindingLevel.WARNING
    assert worst_level({'a': [ok('b', 'c'), skipped('d', 'e')]}) is FindingLevel.OK


def pace(p99_ms: float, *, fps: float = 50, chunk_size: int = 50) -> PolicySpeed:
    return PolicySpeed(p99_ms / 2, p99_ms, 200, fps, chunk_size)


# 50 Hz: a period of 20 ms, of which 4 are a fifth, unless a chunk of 50 rows hides more
FORWARDS = [
    pace(4.0, chunk_size=1),
    pace(4.1, chunk_size=1),
    pace(4.1),
    pace(499.0),
    pace(501.0),
    pace(7, fps=0),
]
CAPACITIES = [
    # a chunk lasts 1 s, a request takes 20 ms: 50 in a row, 35 at 70 %
    (PolicySpeed(20, 25, 100, 50, 50), False),
    (pace(5), True),
    (PolicySpeed(900, 900, 9, 50, 50), False),
    (pace(7, fps=0), False),
]


@pytest.mark.golden
def test_a_fifth_of_the_period_and_what_chunks_leave_time_for(golden):
    found = [check_forward_time(each) for each in FORWARDS]
    found += [check_capacity(each, exclusive=e, network_s=0.01) for each, e in CAPACITIES]
    golden.holds('doctor/speed.txt', listed(found))


TIMES = st.floats(0, 1e5)


@given(TIMES, TIMES, st.just(0.0) | st.floats(0.1, 1000), st.integers(1, 200), st.booleans())
def test_any_times_are_judged(p50_ms, more_ms, fps, chunk_size, exclusive):
    given_pace = PolicySpeed(p50_ms, p50_ms + more_ms, 10, fps, chunk_size)
    check_forward_time(given_pace)
    found = check_capacity(given_pace, exclusive=exclusive, network_s=0.01)
    if found.found.startswith('about'):
        count = int(found.found.split()[1].rstrip(':'))
        assert count >= 1
        assert count * max(p50_ms, 1e-3) <= UTILISATION * given_pace.chunk_ms * (1 + 1e-9)


@given(st.floats(0.1, 100), st.floats(1, 10))
def test_slower_is_never_judged_better(p99_ms, factor):
    order = [FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILURE]
    quick, slow = check_forward_time(pace(p99_ms)), check_forward_time(pace(p99_ms * factor))
    assert order.index(quick.verdict) <= order.index(slow.verdict)

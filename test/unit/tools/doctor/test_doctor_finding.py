# SPDX-License-Identifier: Apache-2.0
"""Findings of the doctor and the report made of them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

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

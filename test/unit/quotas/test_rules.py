# SPDX-License-Identifier: Apache-2.0
"""The lines of the parameter quotas: what they mean, and which are refused with which words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.quotas import parse_quotas, Resource, RULES_LIMIT, Scope


def test_a_rule_has_a_scope_a_pattern_and_rates():
    robot, group = parse_quotas(
        ['robot *: 10 requests/s, 20 MB/s', ' group  lab_* : 300.5 inference_ms/s ']
    )
    assert (robot.scope, robot.pattern) == (Scope.ROBOT, '*')
    assert robot.rates == ((Resource.REQUESTS, 10.0), (Resource.MEGABYTES, 20.0))
    assert (group.name, group.rates) == ('group lab_*', ((Resource.INFERENCE, 300.5),))


@pytest.mark.parametrize(
    'pattern, client, matches',
    [
        ('*', 'robot_1', True),
        ('robot_?', 'robot_1', True),
        ('robot_?', 'robot_12', False),
        ('lab_[ab]', 'lab_b', True),
        ('Robot_1', 'robot_1', False),
        ('robot', 'robot_1', False),
    ],
)
def test_a_pattern_matches_the_whole_client_id(pattern, client, matches):
    (rule,) = parse_quotas([f'robot {pattern}: 1 requests/s'])
    assert rule.matches(client) is matches


@pytest.mark.parametrize(
    'line, words',
    [
        ('', 'robot *: 10 requests/s'),
        ('robot *', 'robot *: 10 requests/s'),
        ('fleet *: 1 requests/s', 'must hold rules like'),
        ('robot *:', 'a rate is a number and one of requests/s, MB/s, inference_ms/s'),
        ('robot *: 10', "got '10'"),
        ('robot *: 10 requests', "got '10 requests'"),
        ('robot *: ten requests/s', "above 0 and at most 1e+09, got 'ten'"),
        ('robot *: 0 requests/s', 'above 0'),
        ('robot *: -1 MB/s', 'above 0'),
        ('robot *: nan MB/s', 'above 0'),
        ('robot *: inf MB/s', 'above 0'),
        ('robot *: 1 MB/s, 2 MB/s', 'MB/s is there twice'),
        (f'robot {"x" * 200}: 1 MB/s', '128 characters, got 200'),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_allowed(line, words):
    with pytest.raises(ParameterError) as raised:
        parse_quotas([line])
    assert words in str(raised.value)
    assert str(raised.value).startswith('quotas')


def test_two_rules_for_the_same_are_refused():
    with pytest.raises(ParameterError, match='two rules for'):
        parse_quotas(['robot a: 1 MB/s', 'robot a: 2 MB/s'])
    assert len(parse_quotas(['robot a: 1 MB/s', 'group a: 2 MB/s'])) == 2


def test_rules_are_bounded():
    lines = [f'robot r{number}: 1 MB/s' for number in range(RULES_LIMIT + 1)]
    assert len(parse_quotas(lines[:-1])) == RULES_LIMIT
    with pytest.raises(ParameterError, match='may have 256 rules, got 257'):
        parse_quotas(lines)


@given(st.lists(st.text(max_size=60), max_size=4))
def test_no_text_raises_anything_else(lines):
    try:
        parse_quotas(lines)
    except ParameterError as error:
        assert str(error)

# SPDX-License-Identifier: Apache-2.0
"""The texts of a plan, and the terms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.plan import CanaryPlan, CanaryStep, parse_plan

SHARES = st.lists(st.integers(1, 99), min_size=1, max_size=8, unique=True).map(sorted)
EPISODES = st.integers(0, 10**6)
SECONDS = st.integers(0, 10**6)


def parse(*texts: str) -> CanaryPlan | None:
    return parse_plan(texts, minimum_episodes=20, minimum_s=600)


def test_minimums_where_a_step_names_none():
    assert parse('5', '25:50', '50:60:7.5', '100') == CanaryPlan(
        (
            CanaryStep(5, 20, 600.0),
            CanaryStep(25, 50, 600.0),
            CanaryStep(50, 60, 7.5),
            CanaryStep(100),
        )
    )


@pytest.mark.parametrize('texts', [(), ('',), (' ', '')])
def test_no_text_is_no_canary(texts):
    assert parse(*texts) is None


@pytest.mark.parametrize(
    ('texts', 'told'),
    [
        (('5', '5', '100'), 'must rise from step to step, got shares 5, 5, 100'),
        (('25', '5', '100'), 'must rise from step to step, got shares 25, 5, 100'),
        (('5', '100', '100'), 'must rise'),
        (('5', '25'), "must end with '100', got shares 5, 25"),
        (('100',), "a step below 100, at which the policies are compared, got only '100'"),
        (('5', '100:1'), "must end with '100', got '100:1'"),
        (('0', '100'), "a share must be in [1, 100], got 0 in '0'"),
        (('101',), "a share must be in [1, 100], got 101 in '101'"),
        (('5:1000001', '100'), 'minimum episodes must be in [0, 1e+06], got 1e+06'),
        (('5:1:99999999', '100'), 'minimum seconds must be in [0, 1e+07]'),
        (('5%', '100'), "'SHARE:EPISODES:SECONDS', for example '25:50:600'; got '5%'"),
        (('', '5', '100'), "got ''"),
        (('5:', '100'), "got '5:'"),
        (('5:1:2:3', '100'), "got '5:1:2:3'"),
        (('-5', '100'), "got '-5'"),
        (('5.5', '100'), "got '5.5'"),
        (('5:1e3', '100'), "got '5:1e3'"),
        (('5:1:nan', '100'), "got '5:1:nan'"),
        (('\u0665', '100'), "got '\u0665'"),
        (('9' * 5000, '100'), 'a share must be in [1, 100]'),
    ],
)
def test_a_wrong_text_is_named_with_what_is_allowed(texts, told):
    with pytest.raises(ParameterError) as error:
        parse(*texts)
    assert told in str(error.value)
    assert 'canary_steps' in str(error.value)


@given(SHARES, st.data())
def test_every_plan_is_read_as_it_was_written(shares, data):
    steps = tuple(CanaryStep(s, data.draw(EPISODES), float(data.draw(SECONDS))) for s in shares)
    texts = [f'{s.share_percent}:{s.minimum_episodes}:{s.minimum_s:.0f}' for s in steps]
    plan = parse(*texts, '100')
    assert plan == CanaryPlan((*steps, CanaryStep(100)))
    assert plan.trials == steps


@given(SHARES)
def test_two_plans_differ_in_their_texts(shares):
    texts = [str(share) for share in shares]
    plan = parse(*texts, '100')
    assert parse(*plan.text.split(', ')) == plan
    for i in range(len(texts)):
        other = [*texts[:i], f'{texts[i]}:21', *texts[i + 1 :], '100']
        assert parse(*other).text != plan.text


@given(st.lists(st.text(st.characters(codec='utf-8'), max_size=8), max_size=4))
def test_any_text_is_a_plan_or_an_error(texts):
    try:
        plan = parse(*texts)
    except ParameterError:
        return
    assert plan is None or plan.steps[-1].share_percent == 100

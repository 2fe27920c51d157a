# SPDX-License-Identifier: Apache-2.0
"""From where a policy can drive: the rule of a fifth of a step, and that of half a chunk."""

from __future__ import annotations

import argparse
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.paths import REPOSITORY

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.plan.command import ALL_OPTIONS, TIER_OPTIONS
from lerobot_serve.tools.plan.tiers import judge, parse_tier, Tier, tiers_report

PAGE = (REPOSITORY / 'docs' / 'plan.md').read_text()
TIERS = (Tier('robot', 4.0, 0.0), Tier('site', 12.0, 5.0), Tier('remote', 60.0, 120.0))


def test_the_page_shows_what_is_printed():
    shown = PAGE.partition('--fps 30 --chunk-rows 30\n')[2].partition('\n```')[0]
    assert tiers_report(judge(TIERS, 30.0, 30), 30.0, 30).as_text() == shown


@pytest.mark.parametrize(
    ('inference_ms', 'fps', 'rows', 'each_step', 'chunks'),
    [
        # a step of 50 Hz takes 20 ms, and inference may take 4 of them
        (4.0, 50.0, 1, True, True),
        (4.01, 50.0, 1, False, True),
        # half of a chunk of one action is half of a step
        (10.0, 50.0, 1, False, True),
        (10.01, 50.0, 1, False, False),
        (10.01, 50.0, 2, False, True),
    ],
)
def test_the_limits(inference_ms, fps, rows, each_step, chunks):
    (found,) = judge([Tier('a', inference_ms, 0.0)], fps, rows)
    assert (found.can_answer_each_step, found.can_send_chunks) == (each_step, chunks)


@given(
    st.floats(0.1, 1e4),
    st.floats(0, 1e4),
    st.floats(0.1, 1000),
    st.integers(1, 1000),
)
def test_what_is_possible_is_possible_at_each_lower_rate(inference_ms, network_ms, fps, rows):
    tier = Tier('a', inference_ms, network_ms)
    (found,) = judge([tier], fps, rows)
    assert found.can_send_chunks or not found.can_answer_each_step
    for rate, holds in (
        (found.step_rate_hz, 'can_answer_each_step'),
        (found.chunk_rate_hz, 'can_send_chunks'),
    ):
        assert getattr(judge([tier], rate, rows)[0], holds)
        assert getattr(judge([tier], rate / 2, rows)[0], holds)
        assert not getattr(judge([tier], rate * 1.001, rows)[0], holds)


@pytest.mark.parametrize('text', ['robot:4', 'a:0.5:0', 'far-away:60000:60000'])
def test_a_tier_is_read(text: str):
    name, *times = text.split(':')
    found = parse_tier(text)
    assert found.name == name
    assert [found.inference_ms, found.network_ms][: len(times)] == [float(t) for t in times]


@pytest.mark.parametrize(
    'text', ['', 'robot', 'robot:', ':4', 'robot:0', 'robot:-1', 'a:1e9', 'a:60001', 'a:1:60001',
             'a:1:2:3', 'a:.', 'a b:1', '4:4', 'a:nan', 'a:1..2']
)  # fmt: skip
def test_a_tier_that_is_none_is_refused_with_its_form(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match='such as site:25:4'):
        parse_tier(text)


def test_two_tiers_of_one_name_are_refused():
    with pytest.raises(ParameterError, match='each name once'):
        judge([TIERS[0], TIERS[0]], 30.0, 30)


def test_the_command(capsys):
    arguments = ['plan', '--tier', 'robot:4', '--tier', 'remote:60:120', '--fps', '1000', '--json']
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)['tiers']
    assert [each['tier']['name'] for each in found] == ['robot', 'remote']
    assert main(['plan', '--tier', 'slow:60000', '--fps', '1000', '--chunk-rows', '1']) == 1
    assert main(['plan', '--robots', '3']) == 2
    assert '--inference-ms must be given, or --tier' in capsys.readouterr().err


@pytest.mark.parametrize('option', [o for o in ALL_OPTIONS if o.name not in TIER_OPTIONS], ids=str)
def test_an_option_without_effect_on_tiers_is_refused(capsys, option):
    value = next(each for each in option.argument.bounds if each != option.default)
    assert main(['plan', '--tier', 'robot:4', option.flags[0], str(value)]) == 2
    assert f'{option.flags[0]} must not be given with --tier' in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""The benchmark of start-up, where something is missing: it says so in words."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from benchmarks import failover, start_up
from lerobot_serve.errors import UserError
from lerobot_serve.policies.base import PolicyError


@pytest.mark.parametrize('benchmark', [start_up, failover])
def test_without_torch_nothing_is_measured_and_that_is_told(benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    (case,) = benchmark.measure(4, tmp_path)
    assert case.name == 'not measured'
    assert 'torch is not installed' in case.parameters['why']


def test_without_lerobot_the_other_policy_is_measured(monkeypatch, tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from benchmarks.policies import small_act

    def build(folder):
        raise PolicyError('this policy needs LeRobot')

    monkeypatch.setattr(small_act, 'build', build)
    policies, (case,) = start_up.find_policies(tmp_path)
    assert list(policies) == [start_up.REACH]
    assert case.parameters == {'not_measured': 'this policy needs LeRobot'}


def test_a_demo_that_fails_is_told_with_its_log(tmp_path):
    command = [sys.executable, '-c', 'raise SystemExit(5)']
    with pytest.raises(UserError, match=r'the demo ended with 5 within 600 s; see demo\.log'):
        start_up.play(command, tmp_path, tmp_path / 'demo.log')


@pytest.mark.parametrize(
    ('first_s', 'whole_s', 'holds'),
    [
        (10.0, 240.0, [True, True, True]),
        (10.1, 239.0, [False, True, True]),
        (4.0, 240.1, [True, False, True]),
    ],
)
def test_the_whole_demo_has_two_bounds(monkeypatch, tmp_path, first_s, whole_s, holds):
    figures = {'ok': True, 'seconds': whole_s, 'acts': {'serve': {'first_motion_s': first_s}}}
    monkeypatch.setattr(start_up, 'play', lambda command, *_: figures)
    case = start_up.measure_tour(tmp_path, tmp_path)
    assert list(case.goals.values()) == holds
    assert case.series_ms['the whole demo'] == [1000 * whole_s]

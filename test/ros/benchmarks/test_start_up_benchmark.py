# SPDX-License-Identifier: Apache-2.0
"""The benchmark of start-up, where something is missing: it says so in words."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from benchmarks import failover, start_up
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.ros.process.node_runtime import UserError


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
    with pytest.raises(UserError, match=r'the demo ended with 5 within 300 s; see demo\.log'):
        start_up.play(command, tmp_path, tmp_path / 'demo.log')

# SPDX-License-Identifier: Apache-2.0
"""
The built-in trainer on datasets that LeRobot wrote: a policy that misses, a person who corrects
it, and after one or two rounds it reaches more targets than before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import threading
import time

import numpy as np
import pytest

from benchmarks.recording.example_bag import EdgeBag, Step
from lerobot_serve.tools.cli.main import main

pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot writes the dataset')

from support.paths import REPOSITORY

from lerobot_serve.demo.train import success_outcomes
from lerobot_serve.learner.trainers.base import TrainingJob
from lerobot_serve.learner.trainers.builtin import BuiltinTrainer
from lerobot_serve.learner.trainers.options import BuiltinOptions
from lerobot_serve.policies.base import LoadOptions
from lerobot_serve.policies.builtin.policy import load
from lerobot_serve.sim import cameras
from lerobot_serve.sim.scene import draw_target
from lerobot_serve_interfaces.msg import ExecutedAction

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]
POLICIES = REPOSITORY / 'config' / 'policies'
PIXELS, STEPS, EPISODES, ATTEMPTS = 64, 60, 50, 100


def corrected(shift_m: float, target_xy: tuple[float, float]) -> Callable[[Step], None]:
    """Return how a person's step differs: its source, and the view of a camera that was moved."""

    def change(step: Step) -> None:
        step.action.source = ExecutedAction.SOURCE_PERSON
        step.frames['wrist'] = cameras.render(
            'wrist', PIXELS, PIXELS, step.positions, target_xy, wrist_shift_m=shift_m
        )

    return change


def record(folder: Path, number: int, shift_m: float) -> Path:
    """Record the corrections of one round."""
    draw = np.random.default_rng((11, number))
    made = EdgeBag(folder, size=(PIXELS, PIXELS))
    for episode in range(EPISODES):
        target_xy = draw_target(draw)
        change = corrected(shift_m, target_xy)
        made.episode(f'round{number}_{episode}', STEPS, target_xy=target_xy, change=change)
    return made.close()


def success(folder: Path, shift_m: float) -> float:
    policy = load(LoadOptions(str(folder)))
    outcomes = success_outcomes(policy, 31, ATTEMPTS, pixels=PIXELS, wrist_shift_m=shift_m)
    return sum(outcome.success for outcome in outcomes) / ATTEMPTS


@pytest.mark.parametrize(('name', 'shift_m'), [('reach_v1', 0.0), ('reach', 0.05)])
def test_corrections_make_it_better(tmp_path, name, shift_m):
    parent, data = POLICIES / name, tmp_path / 'data'
    rates = [success(parent, shift_m)]
    for number in range(2):
        bag = record(tmp_path / f'bag{number}', number, shift_m)
        more = ['--append'] if number else []
        assert main(['dataset', str(bag), str(data), '--vcodec', 'png', *more]) == 0
        new = frozenset(range(number * EPISODES, (number + 1) * EPISODES))
        output = tmp_path / f'policy{number}'
        job = TrainingJob(data, parent, output, tmp_path / 'work', new, seed=5, budget_s=300.0)
        began_s = time.perf_counter()
        parent = BuiltinTrainer(BuiltinOptions()).train(job, lambda _: None, threading.Event())
        rates.append(success(parent, shift_m))
        print(f'{name}: round {number + 1} took {time.perf_counter() - began_s:.1f} s')
    print(f'{name}, wrist camera moved by {shift_m} m: success {rates}')
    assert max(rates[1:]) >= rates[0] + 0.2
    assert rates[-1] >= rates[0] + 0.2

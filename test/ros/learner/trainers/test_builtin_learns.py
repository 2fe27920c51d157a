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

from support.learner.trainer_rig import REACH, training_job

from lerobot_serve.demo.train import success_outcomes
from lerobot_serve.learner.trainers.builtin import BuiltinTrainer
from lerobot_serve.learner.trainers.trainer_file import BuiltinOptions
from lerobot_serve.policies.base import LoadOptions
from lerobot_serve.policies.builtin.policy import load
from lerobot_serve.sim import cameras
from lerobot_serve.sim.scene import draw_target
from lerobot_serve_interfaces.msg import ExecutedAction

pytestmark = [pytest.mark.release, pytest.mark.limit_s(900)]
PIXELS, STEPS, EPISODES, ATTEMPTS = 64, 60, 12, 50
# a third of the default: enough for so few episodes
OPTIONS = BuiltinOptions(steps=250)
WRIST_SHIFT_M = 0.05


def corrected(target_xy: tuple[float, float]) -> Callable[[Step], None]:
    """Return how a person's step differs: its source, and the view of a camera that was moved."""

    def change(step: Step) -> None:
        step.action.source = ExecutedAction.SOURCE_PERSON
        step.frames['wrist'] = cameras.render(
            'wrist', PIXELS, PIXELS, step.positions, target_xy, wrist_shift_m=WRIST_SHIFT_M
        )

    return change


def record(folder: Path, number: int) -> Path:
    """Record the corrections of one round."""
    draw = np.random.default_rng((11, number))
    made = EdgeBag(folder, size=(PIXELS, PIXELS))
    for episode in range(EPISODES):
        target_xy = draw_target(draw)
        name = f'round{number}_{episode}'
        made.episode(name, STEPS, target_xy=target_xy, change=corrected(target_xy))
    return made.close()


def success(folder: Path) -> float:
    policy = load(LoadOptions(str(folder)))
    outcomes = success_outcomes(policy, 31, ATTEMPTS, pixels=PIXELS, wrist_shift_m=WRIST_SHIFT_M)
    return sum(outcome.success for outcome in outcomes) / ATTEMPTS


def test_corrections_make_it_better(tmp_path):
    """Its wrist camera was moved after it was trained; the second round begins with the first."""
    parent, data = REACH, tmp_path / 'data'
    rates = [success(parent)]
    for number in range(2):
        bag = record(tmp_path / f'bag{number}', number)
        more = ['--append'] if number else []
        assert main(['dataset', str(bag), str(data), '--vcodec', 'png', *more]) == 0
        new = frozenset(range(number * EPISODES, (number + 1) * EPISODES))
        output = tmp_path / f'policy{number}'
        job = training_job(tmp_path, parent=parent, output=output, new_episodes=new, seed=5)
        began_s = time.process_time()
        parent = BuiltinTrainer(OPTIONS).train(job, lambda _: None, threading.Event())
        took_s = time.process_time() - began_s
        rates.append(success(parent))
        print(f'round {number + 1}: success {rates[-2]} -> {rates[-1]}, {took_s:.1f} s of CPU')
    assert rates[1] >= rates[0] + 0.2
    assert rates[2] >= rates[0] + 0.2

# SPDX-License-Identifier: Apache-2.0
"""
Continue the training of the demo policy `builtin.reach`, in this process and on the CPU.

The same dataset, parent, seed and options give the same bytes on one kind of processor: rows are
drawn beforehand, the number of steps is an option, and a training that does not end within its
budget fails instead of ending earlier. The normalisation stays that of the parent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import math
from pathlib import Path
import shutil
import threading
import time

import numpy as np
import torch

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.learner.trainers import sampling
from lerobot_serve.learner.trainers.base import (
    Progress,
    TrainerError,
    TrainingJob,
    TrainingStopped,
)
from lerobot_serve.learner.trainers.output import new_policy_folder
from lerobot_serve.learner.trainers.pictures import read_pictures
from lerobot_serve.learner.trainers.recorded import read_rows, RecordedInfo, RecordedRows
from lerobot_serve.learner.trainers.trainer_file import BuiltinOptions
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError
from lerobot_serve.policies.builtin.network import Examples, fit, reproducible, write_weights
from lerobot_serve.policies.builtin.policy import load, ReachPolicy, square_crop
from lerobot_serve.policies.builtin.settings import KIND, WEIGHTS_FILE
from lerobot_serve.policies.files.policy_folder import SETTINGS_FILE
from lerobot_serve.policies.registry import detect_kind

BUILTIN_KIND = 'builtin'
REPORT_STEPS = 10


@dataclass(slots=True)
class _Run:
    """One training: its end by request or by time, and its progress."""

    steps: int
    budget_s: float
    report: Callable[[Progress], None]
    stop: threading.Event
    clock: Callable[[], float]
    began_s: float
    step: int = 0
    fit_began_s: float = 0.0

    def tick(self) -> None:
        """Raise TrainingStopped or, past the budget, TrainerError."""
        if self.stop.is_set():
            raise TrainingStopped
        if self.clock() - self.began_s > self.budget_s:
            raise TrainerError(self._late_text())

    def _late_text(self) -> str:
        where = f'step {self.step} of {self.steps}' if self.step else 'reading the dataset'
        text = f'the training is not done after its {self.budget_s:g} s: {where}'
        if self.step:
            whole_s = self.clock() - self.began_s + self.remaining_s()
            text += f', all of them take about {math.ceil(whole_s)} s here'
        return f'{text}; give it more time, or fewer steps in a trainer file'

    def remaining_s(self) -> float:
        elapsed_s = self.clock() - self.fit_began_s
        return elapsed_s / self.step * (self.steps - self.step)

    def on_step(self, step: int, loss: float) -> None:
        """Check and report a step of the fit."""
        self.step = step
        if not math.isfinite(loss):
            raise TrainerError(
                f'the training diverged: the loss of step {step} is {loss}; lower learning_rate '
                'in a trainer file'
            )
        self.tick()
        if step % REPORT_STEPS == 0 or step == self.steps:
            self.report(Progress(step / self.steps, loss, self.remaining_s()))


class BuiltinTrainer:
    """See the module. One job at a time, in one thread; torch's threads are process-wide."""

    def __init__(
        self, options: BuiltinOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options, self._clock = options, clock

    def check(self, parent: Path) -> None:
        """Raise TrainerError unless the parent is a whole policy of the kind builtin."""
        _load(parent)

    def train(
        self, job: TrainingJob, report: Callable[[Progress], None], stop: threading.Event
    ) -> Path:
        """See Trainer."""
        run = _Run(self._options.steps, job.budget_s, report, stop, self._clock, self._clock())
        with new_policy_folder(job.output) as folder:
            policy = _load(job.parent)
            info = RecordedInfo(job.dataset)
            check_fits(info, policy.describe(), job.dataset)
            run.report(Progress(0.0))
            with reproducible(self._options.cpu_threads):
                self._fit(policy, info, job, run)
            _write(policy, job.parent, folder)
        return job.output

    def _fit(self, policy: ReachPolicy, info: RecordedInfo, job: TrainingJob, run: _Run) -> None:
        rows = read_rows(info)
        drawn = self._draw(rows, job)
        # each row once, however often it is drawn
        used, places = np.unique(drawn, return_inverse=True)
        examples = _examples(policy, info, rows, used, run.tick)
        network = policy.network.requires_grad_(True)
        run.fit_began_s = self._clock()
        fit(
            network,
            examples,
            torch.from_numpy(places.reshape(-1)).split(self._options.batch_size),
            steps=self._options.steps,
            learning_rate=self._options.learning_rate,
            on_step=run.on_step,
        )

    def _draw(self, rows: RecordedRows, job: TrainingJob) -> sampling.Int64Array:
        options, authors = self._options, rows.authors
        weights = sampling.row_weights(authors, intervention_weight=options.intervention_weight)
        if not weights.any():
            raise TrainerError(
                f'none of the {len(rows)} rows of {job.dataset} is an example: no person '
                'commanded, and no episode succeeded without one; correct the robot, or record '
                'episodes with outcomes'
            )
        return sampling.draw_rows(
            weights,
            sampling.is_new(authors, job.new_episodes),
            count=options.steps * options.batch_size,
            seed=job.seed,
        )


def check_fits(info: RecordedInfo, policy: PolicyDescription, dataset: Path) -> None:
    """Raise TrainerError unless names, cameras and rate of a dataset are those of a policy."""
    cameras = [camera.name for camera in policy.cameras]
    compared = (
        ('state names', list(info.state_names), list(policy.state_names)),
        ('action names', list(info.action_names), list(policy.action_names)),
        ('cameras', sorted(info.cameras), sorted(cameras)),
        ('frames a second', info.fps, policy.trained_fps),
    )
    for what, there, wanted in compared:
        if there != wanted:
            raise TrainerError(
                f'the {what} of {dataset} are {there}, those of the policy '
                f'{policy.fingerprint} are {wanted}; convert bags of robots that this policy '
                'drives'
            )


def _load(parent: Path) -> ReachPolicy:
    try:
        kind = detect_kind(str(parent))
        if kind != BUILTIN_KIND:
            raise TrainerError(
                f'the built-in trainer continues policies of the kind {KIND}, and {parent} is of '
                f'the kind {kind}; use a trainer file, such as config/trainers/lerobot_act.yaml'
            )
        return load(LoadOptions(str(parent)))
    except PolicyError as error:
        raise TrainerError(f'the policy to continue from cannot be used: {error}') from error


def _examples(
    policy: ReachPolicy,
    info: RecordedInfo,
    rows: RecordedRows,
    used: sampling.Int64Array,
    tick: Callable[[], None],
) -> Examples:
    authors, sizes = rows.authors, policy.network.sizes
    ends = sampling.run_ends(authors.episode, authors.source, rows.control_step)
    offset, is_known = sampling.chunks_of(
        used, ends, state=rows.state, action=rows.action, length=policy.network.rows
    )

    def scale(picture: Uint8Array) -> Uint8Array:
        return np.asarray(square_crop(picture, sizes.image_pixels), np.uint8)

    front, wrist = (
        torch.from_numpy(read_pictures(info, rows, used, camera.name, scale, tick))
        for camera in policy.describe().cameras
    )
    state = torch.from_numpy(rows.state[used])
    return Examples(front, wrist, state, torch.from_numpy(offset), torch.from_numpy(is_known))


def _write(policy: ReachPolicy, parent: Path, folder: Path) -> None:
    """Write the folder and load it, which finds weights that are not finite."""
    folder.mkdir()
    shutil.copyfile(parent / SETTINGS_FILE, folder / SETTINGS_FILE)
    write_weights(policy.network, folder / WEIGHTS_FILE)
    _load(folder)

# SPDX-License-Identifier: Apache-2.0
"""Train the policy of a round with a trainer. A child process; its main thread trains."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from pathlib import Path
import threading

from lerobot_serve.errors import UserError
from lerobot_serve.learner.steps.jobs import TrainJob
from lerobot_serve.learner.steps.reports import Advance, Report, TrainDone
from lerobot_serve.learner.trainers.base import (
    Progress,
    Trainer,
    TrainingJob,
    TrainingStopped,
)
from lerobot_serve.learner.trainers.loading import load_trainer
from lerobot_serve.tools.dataset.staging import sync_tree
from lerobot_serve.tools.versions.identity import identify
from lerobot_serve.versions.verifying import is_version, lock_checked


def train(job: TrainJob, report: Callable[[Report], None], stop: threading.Event) -> TrainDone:
    """Return the new policy. Raises UserError."""
    trainer = load_trainer(job.trainer)
    parent = Path(job.parent)
    with contextlib.ExitStack() as stack:
        if is_version(parent):
            # it is not deleted meanwhile
            stack.callback(lock_checked(parent).release)
        try:
            return _trained(trainer, job, parent, report, stop)
        except TrainingStopped:
            raise UserError('the training was stopped') from None


def _trained(
    trainer: Trainer,
    job: TrainJob,
    parent: Path,
    report: Callable[[Report], None],
    stop: threading.Event,
) -> TrainDone:
    trainer.check(parent)
    output, work = Path(job.output), Path(job.work)
    work.mkdir(parents=True, exist_ok=True)

    def on_progress(progress: Progress) -> None:
        report(Advance(progress.done_share, progress.loss, progress.remaining_s))

    made = trainer.train(
        TrainingJob(
            dataset=Path(job.dataset),
            parent=parent,
            output=output,
            work=work,
            new_episodes=frozenset(job.new_episodes),
            seed=job.seed,
            budget_s=job.budget_s,
        ),
        on_progress,
        stop,
    )
    found = identify(made).fingerprint
    if found == identify(parent).fingerprint:
        raise UserError(
            f'training changed nothing: {made} is {found}, the policy that it began with'
        )
    sync_tree(made)
    return TrainDone(str(made), found)

# SPDX-License-Identifier: Apache-2.0
"""Train the policy of a round with a trainer. A child process; its main thread trains."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import threading

from lerobot_serve.errors import UserError
from lerobot_serve.learner.steps.lines import Advance, Report, TrainDone, TrainJob
from lerobot_serve.learner.trainers.base import Progress, Trainer, TrainingStopped
from lerobot_serve.learner.trainers.loading import load_trainer
from lerobot_serve.tools.dataset.staging import sync_tree
from lerobot_serve.tools.versions.identity import identify
from lerobot_serve.versions.verifying import is_version, lock_checked


def train(job: TrainJob, report: Callable[[Report], None], stop: threading.Event) -> TrainDone:
    """Return the new policy. Raises UserError."""
    trainer = load_trainer(job.trainer)
    with contextlib.ExitStack() as stack:
        if is_version(job.parent):
            # it is not deleted meanwhile
            stack.callback(lock_checked(job.parent).release)
        try:
            return _trained(trainer, job, report, stop)
        except TrainingStopped:
            raise UserError('the training was stopped') from None


def _trained(
    trainer: Trainer, job: TrainJob, report: Callable[[Report], None], stop: threading.Event
) -> TrainDone:
    trainer.check(job.parent)
    job.work.mkdir(parents=True, exist_ok=True)

    def on_progress(progress: Progress) -> None:
        report(Advance(progress.done_share, progress.loss, progress.remaining_s))

    made = trainer.train(job, on_progress, stop)
    found = identify(made).fingerprint
    if found == identify(job.parent).fingerprint:
        raise UserError(
            f'training changed nothing: {made} is {found}, the policy that it began with'
        )
    sync_tree(made)
    return TrainDone(made, found)

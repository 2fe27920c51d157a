# SPDX-License-Identifier: Apache-2.0
"""
The interface of a trainer: a job, its progress and its end.

A learner owns one trainer and calls it in one thread, one job at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import threading
from typing import Protocol

from msgspec import Struct

from lerobot_serve.errors import UserError


class TrainerError(UserError):
    """A training is impossible or has failed; the text has the cause and what to do."""


class TrainingStopped(Exception):
    """The training was stopped on request; it left no policy."""


class TrainingJob(Struct, frozen=True, kw_only=True):
    """
    One training: the policy in `parent` continues on `dataset`, a LeRobotDataset v3.0 as
    `lerobot-serve dataset` writes it.

    `output` must not exist; the new policy's folder is left there, whole, or nothing. `work` is a
    folder for logs and checkpoints. `new_episodes` are the indices of the episodes that came since
    the last round. After `budget_s` the training ends: with the last whole checkpoint, where the
    trainer has one, or with TrainerError.
    """

    dataset: Path
    parent: Path
    output: Path
    work: Path
    new_episodes: frozenset[int]
    seed: int
    budget_s: float


class Progress(Struct, frozen=True, tag=True):
    """
    How far a training or another step is: the share that is done, 0 to 1; the last loss, and the
    estimated time until its end. None while it is not known.
    """

    done_share: float | None = None
    loss: float | None = None
    remaining_s: float | None = None


class Trainer(Protocol):
    """See the module."""

    def check(self, parent: Path) -> None:
        """Raise TrainerError for what can be known before any training of this policy."""

    def train(
        self, job: TrainingJob, report: Callable[[Progress], None], stop: threading.Event
    ) -> Path:
        """
        Return the folder of the new policy, `job.output`. Calls `report` in this thread.

        Raises TrainerError, and TrainingStopped soon after `stop` is set.
        """

# SPDX-License-Identifier: Apache-2.0
"""
Steps of a round that need no LeRobot: look for episodes and compute the fingerprint of the parent,
train with a trainer, publish into the store. Each in a child process; its main thread works.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
import threading

from lerobot_serve.errors import UserError
from lerobot_serve.experience.scanning import episodes_in
from lerobot_serve.learner.steps import (
    FoundEpisode,
    PublishDone,
    PublishJob,
    Report,
    ScanDone,
    ScanJob,
    SkippedFolder,
    TrainDone,
    TrainJob,
)
from lerobot_serve.learner.trainers.base import (
    Progress,
    Trainer,
    TrainerError,
    TrainingStopped,
)
from lerobot_serve.learner.trainers.command import CommandTrainer
from lerobot_serve.learner.trainers.trainer_file import (
    BUILTIN,
    BuiltinOptions,
    CommandOptions,
    read_trainer_file,
)
from lerobot_serve.requirements import install_command
from lerobot_serve.tools.dataset.staging import sync_tree
from lerobot_serve.tools.versions import identify
from lerobot_serve.versions.errors import PublishError, VersionError
from lerobot_serve.versions.file_hash import CountBytes
from lerobot_serve.versions.manifest import read_manifest, TIME_FORMAT
from lerobot_serve.versions.publishing import Details, policy_paths, publish
from lerobot_serve.versions.store import is_version, lock_checked, VersionStore


def scan(job: ScanJob, report: Callable[[Report], None]) -> ScanDone:
    """Report each episode; return what could not be read beside the parent."""
    faults: list[str] = []
    parent = ''
    try:
        parent = _fingerprint(job.parent) if job.parent else ''
    except VersionError as error:
        faults.append(f'the parent {job.parent} cannot be used: {error}')
    for folder in job.folders:
        try:
            if not folder.is_dir():
                faults.append(f'{folder} is not a folder; create it, or change episode_folders')
                continue
            for episode in episodes_in(folder, partial(_skip, report)):
                report(FoundEpisode(episode))
        except OSError as error:
            faults.append(f'{folder} cannot be read: {error.strerror or error}')
    return ScanDone(parent, tuple(faults))


def _skip(report: Callable[[Report], None], folder: Path, why: str) -> None:
    report(SkippedFolder(str(folder), why))


def _fingerprint(folder: Path) -> str:
    """Return the id of a version, or what a policy server computes. Raises VersionError."""
    return read_manifest(folder).id if is_version(folder) else identify(folder).fingerprint


def load_trainer(name: str) -> Trainer:
    """Return the trainer `builtin`, or that of a trainer file. Raises TrainerError."""
    options = BuiltinOptions() if name == BUILTIN else read_trainer_file(Path(name))
    if isinstance(options, CommandOptions):
        return CommandTrainer(options)
    try:
        # it imports torch
        from lerobot_serve.learner.trainers.builtin import BuiltinTrainer
    except ImportError as error:
        raise TrainerError(
            f'the built-in trainer cannot run here: {error}; install its requirements '
            f'({install_command("torch", "safetensors")})'
        ) from error
    return BuiltinTrainer(options)


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

    made = trainer.train(job, report, stop)
    found = identify(made).fingerprint
    if found == identify(job.parent).fingerprint:
        raise UserError(
            f'training changed nothing: {made} is {found}, the policy that it began with'
        )
    sync_tree(made)
    return TrainDone(made, found)


def progress_of(total_bytes: int, report: Callable[[Report], None]) -> CountBytes:
    """Return what counts bytes, and reports each percent of them."""
    done, shown = 0, -1

    def count(size: int) -> None:
        nonlocal done, shown
        done += size
        percent = 100 * done // max(1, total_bytes)
        if percent != shown:
            shown = percent
            report(Progress(min(1.0, done / max(1, total_bytes))))

    return count


def publish_policy(
    job: PublishJob,
    report: Callable[[Report], None],
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> PublishDone:
    """Copy a policy, whole or not at all; a version that is there is the result. VersionError."""
    policy = job.policy
    total_bytes = sum((policy / path).stat().st_size for path in policy_paths(policy)[0])
    found = identify(policy).fingerprint
    if found != job.fingerprint:
        raise PublishError(
            f'{policy} changed after training: it was {job.fingerprint} and is {found} now; begin '
            'the round again'
        )
    details = Details(
        created=now().strftime(TIME_FORMAT),
        parent=job.parent,
        dataset_sha256=job.dataset_sha256,
        note=job.note,
        sources=job.sources,
    )
    count = progress_of(total_bytes, report)
    published = publish(VersionStore.make(job.store), policy, identify, details, count)
    return PublishDone(published.manifest.id)

# SPDX-License-Identifier: Apache-2.0
"""
What a step of a round gets, and what it reports: one line of JSON each. The last report is Done or
Failed. Any thread. Each step is a child process of low priority: look for episodes, convert them,
train, publish; `step_process` is the side of the learner, `lerobot_serve.tools.learning` that of
the child, which ends when its learner does: it reads the end of its standard input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.experience.recorded_episode import check_recorded
from lerobot_serve.learner.trainers.base import Progress, TrainingJob


class Line(Struct, frozen=True, tag=True):
    """A job or a report; the line has the name of its class."""


class ScanJob(Line, frozen=True):
    """Look for episodes below folders; `parent` is the folder whose fingerprint is asked for."""

    folders: tuple[Path, ...]
    parent: Path | None


class BagToConvert(Struct, frozen=True):
    """
    A readable bag, its hash, and the episode that it holds; `copies` are further places of it, for
    where the first is damaged.
    """

    path: Path
    sha256: str
    client_id: str
    episode_id: str
    copies: tuple[Path, ...] = ()


class Conversion(Line, frozen=True):
    """Bags for a dataset, and how they are converted."""

    bags: tuple[BagToConvert, ...]
    dataset: Path
    filters: tuple[str, ...]
    vcodec: str


class ConvertJob(Conversion, frozen=True):
    """
    Add bags to a dataset. `used` are robot and id of the episodes that the parent of the round was
    trained on: all others are new to it.
    """

    used: tuple[tuple[str, str], ...]


class StageJob(Conversion, frozen=True):
    """Convert bags ahead of the round that adds them to a dataset."""


class TrainJob(TrainingJob, frozen=True, tag=True):
    """Train a policy; `trainer` is builtin or a trainer file."""

    trainer: str


class PublishJob(Line, frozen=True):
    """Publish the policy in a folder, which has this fingerprint."""

    store: Path
    policy: Path
    fingerprint: str
    parent: str
    dataset_sha256: str
    note: str
    sources: tuple[str, ...]


Job = ScanJob | StageJob | ConvertJob | TrainJob | PublishJob


class FoundEpisode(Line, frozen=True):
    """An episode that a search found."""

    episode: RecordedEpisode

    def __post_init__(self) -> None:
        check_recorded(self.episode)


class SkippedFolder(Line, frozen=True):
    """A folder that is not the whole bag of an episode, and why."""

    path: str
    text: str


class RefusedBag(Line, frozen=True):
    """A bag that is not in the dataset: the reason in a word, and what to do."""

    sha256: str
    reason: str
    text: str


class ScanDone(Line, frozen=True):
    """The fingerprint of the parent's folder, empty for none, and folders that were not read."""

    parent: str
    faults: tuple[str, ...]


class StageDone(Line, frozen=True):
    """Hashes of the bags that were looked at ahead of a round."""

    staged: tuple[str, ...]


class ConvertDone(Line, frozen=True):
    """
    Hashes of the bags that the dataset has, the indices that are new to the parent, and its hash;
    `new` are robot and id of what is new, also of bags that are gone since.
    """

    converted: tuple[str, ...]
    new_episodes: tuple[int, ...]
    total_episodes: int
    dataset_sha256: str
    new: tuple[tuple[str, str], ...]


class TrainDone(Line, frozen=True):
    """The folder of the new policy, whole on the disk, and its fingerprint."""

    output: Path
    fingerprint: str


class PublishDone(Line, frozen=True):
    """The version in the store."""

    id: str


class Failed(Line, frozen=True):
    """Why a step ended without a result, in a sentence with the remedy."""

    text: str


Done = ScanDone | StageDone | ConvertDone | TrainDone | PublishDone
Report = Progress | FoundEpisode | SkippedFolder | RefusedBag | Done | Failed


def encoded(line: Job | Report) -> bytes:
    """Return the line of a job or a report."""
    return msgspec.json.encode(line, enc_hook=str) + b'\n'


def decoded_job(line: bytes) -> Job:
    """Return the job of a line of `encoded`."""
    return msgspec.json.decode(line, type=Job, dec_hook=_path)


def decoded_report(line: bytes) -> Report:
    """Return the report of a line of `encoded`. Raises ValueError for any other line."""
    try:
        return msgspec.json.decode(line, type=Report, dec_hook=_path)
    except msgspec.DecodeError as error:
        raise ValueError(f'not a report of a step: {error}') from None


def _path(kind: type[Path], text: Any) -> Path:
    return kind(text)

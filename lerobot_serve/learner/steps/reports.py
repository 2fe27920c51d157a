# SPDX-License-Identifier: Apache-2.0
"""What a step reports, one line of JSON each. The last one is Done or Failed. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
import json
import math
from typing import Any

from lerobot_serve.learner.steps.jobs import as_tuple


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a step is; NaN for what is not known."""

    done_share: float = math.nan
    loss: float = math.nan
    remaining_s: float = math.nan


@dataclass(frozen=True, slots=True)
class FoundEpisode:
    """An episode that a search found, as fields of RecordedEpisode."""

    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SkippedFolder:
    """A folder that is not the whole bag of an episode, and why."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class RefusedBag:
    """A bag that is not in the dataset: the reason in a word, and what to do."""

    sha256: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class ScanDone:
    """The fingerprint of the parent's folder, empty for none, and folders that were not read."""

    parent: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageDone:
    """Hashes of the bags that were looked at ahead of a round."""

    staged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConvertDone:
    """
    Hashes of the bags that the dataset has, the indices that are new to the parent, and its hash;
    `new` are robot and id of what is new, also of bags that are gone since.
    """

    converted: tuple[str, ...]
    new_episodes: tuple[int, ...]
    total_episodes: int
    dataset_sha256: str
    new: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TrainDone:
    """The folder of the new policy, whole on the disk, and its fingerprint."""

    output: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PublishDone:
    """The version in the store."""

    id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a step ended without a result, in a sentence with the remedy."""

    text: str


Done = ScanDone | StageDone | ConvertDone | TrainDone | PublishDone
Report = Advance | FoundEpisode | SkippedFolder | RefusedBag | Done | Failed
KINDS: dict[str, Callable[..., Report]] = {
    'advance': Advance,
    'found': FoundEpisode,
    'skipped': SkippedFolder,
    'refused': RefusedBag,
    'scanned': ScanDone,
    'staged': StageDone,
    'converted': ConvertDone,
    'trained': TrainDone,
    'published': PublishDone,
    'failed': Failed,
}


def encoded(report: Report) -> bytes:
    """Return the line of a report."""
    kind = next(name for name, kind in KINDS.items() if type(report) is kind)
    return json.dumps({'kind': kind, 'values': asdict(report)}).encode() + b'\n'


def decoded(line: bytes) -> Report:
    """Return the report of a line of `encoded`. Raises ValueError for any other line."""
    try:
        content = json.loads(line)
        values = {name: as_tuple(value) for name, value in content['values'].items()}
        return KINDS[content['kind']](**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'not a report of a step: {error}') from None

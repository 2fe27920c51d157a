# SPDX-License-Identifier: Apache-2.0
"""What a step reports, one line of JSON each. The last one is Done or Failed. Any thread."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Advance(Struct, frozen=True, tag_field='kind', tag='advance'):
    """How far a step is; None for what is not known, as NaN becomes in a line."""

    done_share: float | None = None
    loss: float | None = None
    remaining_s: float | None = None


class FoundEpisode(Struct, frozen=True, tag_field='kind', tag='found'):
    """An episode that a search found, as fields of RecordedEpisode."""

    values: dict[str, Any]


class SkippedFolder(Struct, frozen=True, tag_field='kind', tag='skipped'):
    """A folder that is not the whole bag of an episode, and why."""

    path: str
    text: str


class RefusedBag(Struct, frozen=True, tag_field='kind', tag='refused'):
    """A bag that is not in the dataset: the reason in a word, and what to do."""

    sha256: str
    reason: str
    text: str


class ScanDone(Struct, frozen=True, tag_field='kind', tag='scanned'):
    """The fingerprint of the parent's folder, empty for none, and folders that were not read."""

    parent: str
    faults: tuple[str, ...]


class StageDone(Struct, frozen=True, tag_field='kind', tag='staged'):
    """Hashes of the bags that were looked at ahead of a round."""

    staged: tuple[str, ...]


class ConvertDone(Struct, frozen=True, tag_field='kind', tag='converted'):
    """
    Hashes of the bags that the dataset has, the indices that are new to the parent, and its hash;
    `new` are robot and id of what is new, also of bags that are gone since.
    """

    converted: tuple[str, ...]
    new_episodes: tuple[int, ...]
    total_episodes: int
    dataset_sha256: str
    new: tuple[tuple[str, str], ...]


class TrainDone(Struct, frozen=True, tag_field='kind', tag='trained'):
    """The folder of the new policy, whole on the disk, and its fingerprint."""

    output: str
    fingerprint: str


class PublishDone(Struct, frozen=True, tag_field='kind', tag='published'):
    """The version in the store."""

    id: str


class Failed(Struct, frozen=True, tag_field='kind', tag='failed'):
    """Why a step ended without a result, in a sentence with the remedy."""

    text: str


Done = ScanDone | StageDone | ConvertDone | TrainDone | PublishDone
Report = Advance | FoundEpisode | SkippedFolder | RefusedBag | Done | Failed


def encoded(report: Report) -> bytes:
    """Return the line of a report."""
    return msgspec.json.encode(report) + b'\n'


def decoded(line: bytes) -> Report:
    """Return the report of a line of `encoded`. Raises ValueError for any other line."""
    try:
        return msgspec.json.decode(line, type=Report)
    except msgspec.DecodeError as error:
        raise ValueError(f'not a report of a step: {error}') from None

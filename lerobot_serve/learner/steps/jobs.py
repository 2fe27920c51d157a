# SPDX-License-Identifier: Apache-2.0
"""What each step gets: plain data that becomes one line of JSON. Any thread."""

from __future__ import annotations

from dataclasses import asdict, dataclass
import json
from typing import Any


@dataclass(frozen=True, slots=True)
class ScanJob:
    """Look for episodes below folders; `parent` is the folder whose fingerprint is asked for."""

    folders: tuple[str, ...]
    parent: str


@dataclass(frozen=True, slots=True)
class BagToConvert:
    """
    A readable bag, its hash, and the episode that it holds; `copies` are further places of it, for
    where the first is damaged.
    """

    path: str
    sha256: str
    client_id: str
    episode_id: str
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvertJob:
    """
    Add bags to a dataset. `used` are robot and id of the episodes that the parent of the round was
    trained on: all others are new to it.
    """

    bags: tuple[BagToConvert, ...]
    dataset: str
    filters: tuple[str, ...]
    vcodec: str
    used: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StageJob:
    """Convert bags ahead of the round that adds them to a dataset; the rest as in ConvertJob."""

    bags: tuple[BagToConvert, ...]
    dataset: str
    filters: tuple[str, ...]
    vcodec: str


@dataclass(frozen=True, slots=True)
class TrainJob:
    """Train a policy from `parent`; `trainer` as in trainers/loading.py, the rest in base.py."""

    trainer: str
    parent: str
    dataset: str
    output: str
    work: str
    new_episodes: tuple[int, ...]
    seed: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class PublishJob:
    """Publish the policy in a folder, which has this fingerprint."""

    store: str
    policy: str
    fingerprint: str
    parent: str
    dataset_sha256: str
    note: str
    sources: tuple[str, ...]


Job = ScanJob | StageJob | ConvertJob | TrainJob | PublishJob
KINDS: dict[str, type[Job]] = {
    'scan': ScanJob,
    'stage': StageJob,
    'convert': ConvertJob,
    'train': TrainJob,
    'publish': PublishJob,
}


def kind_of(job: Job) -> str:
    return next(name for name, kind in KINDS.items() if type(job) is kind)


def encoded(job: Job) -> bytes:
    """Return the line of a job."""
    return json.dumps({'kind': kind_of(job), 'job': asdict(job)}).encode() + b'\n'


def decoded(line: bytes) -> Job:
    """Return the job of a line of `encoded`."""
    content: dict[str, Any] = json.loads(line)
    values = {name: as_tuple(value) for name, value in content['job'].items()}
    if 'bags' in values:
        values['bags'] = tuple(
            BagToConvert(**{name: as_tuple(value) for name, value in each.items()})
            for each in values['bags']
        )
    return KINDS[content['kind']](**values)


def as_tuple(value: Any) -> Any:
    """Return a value of JSON with tuples instead of lists."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value

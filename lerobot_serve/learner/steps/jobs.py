# SPDX-License-Identifier: Apache-2.0
"""What each step gets: plain data that becomes one line of JSON. Any thread."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class ScanJob(Struct, frozen=True, tag_field='kind', tag='scan'):
    """Look for episodes below folders; `parent` is the folder whose fingerprint is asked for."""

    folders: tuple[str, ...]
    parent: str


class BagToConvert(Struct, frozen=True):
    """
    A readable bag, its hash, and the episode that it holds; `copies` are further places of it, for
    where the first is damaged.
    """

    path: str
    sha256: str
    client_id: str
    episode_id: str
    copies: tuple[str, ...] = ()


class ConvertJob(Struct, frozen=True, tag_field='kind', tag='convert'):
    """
    Add bags to a dataset. `used` are robot and id of the episodes that the parent of the round was
    trained on: all others are new to it.
    """

    bags: tuple[BagToConvert, ...]
    dataset: str
    filters: tuple[str, ...]
    vcodec: str
    used: tuple[tuple[str, str], ...]


class StageJob(Struct, frozen=True, tag_field='kind', tag='stage'):
    """Convert bags ahead of the round that adds them to a dataset; the rest as in ConvertJob."""

    bags: tuple[BagToConvert, ...]
    dataset: str
    filters: tuple[str, ...]
    vcodec: str


class TrainJob(Struct, frozen=True, tag_field='kind', tag='train'):
    """Train a policy from `parent`; `trainer` as in trainers/loading.py, the rest in base.py."""

    trainer: str
    parent: str
    dataset: str
    output: str
    work: str
    new_episodes: tuple[int, ...]
    seed: int
    budget_s: float


class PublishJob(Struct, frozen=True, tag_field='kind', tag='publish'):
    """Publish the policy in a folder, which has this fingerprint."""

    store: str
    policy: str
    fingerprint: str
    parent: str
    dataset_sha256: str
    note: str
    sources: tuple[str, ...]


Job = ScanJob | StageJob | ConvertJob | TrainJob | PublishJob


def kind_of(job: Job) -> str:
    return str(job.__struct_config__.tag)


def encoded(job: Job) -> bytes:
    """Return the line of a job."""
    return msgspec.json.encode(job) + b'\n'


def decoded(line: bytes) -> Job:
    """Return the job of a line of `encoded`."""
    return msgspec.json.decode(line, type=Job)

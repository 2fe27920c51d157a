# SPDX-License-Identifier: Apache-2.0
"""
Add the bags of a round to the dataset of the learner, or convert bags ahead of it. A child
process.

All bags are converted together; when they do not agree, one after the other, so that a bag of
another robot or with damage does not keep the others out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import shutil
from typing import Any, cast

import msgspec

from lerobot_serve.errors import UserError
from lerobot_serve.experience.bag_files import bag_file, NotAnEpisode
from lerobot_serve.experience.scanning import known_hash
from lerobot_serve.learner.steps import (
    BagToConvert,
    Conversion,
    ConvertDone,
    ConvertJob,
    RefusedBag,
    Report,
    StageDone,
    StageJob,
)
from lerobot_serve.tools.bags.message import BagError
from lerobot_serve.tools.dataset import records
from lerobot_serve.tools.dataset.convert import convert
from lerobot_serve.tools.dataset.episodes import DatasetError
from lerobot_serve.tools.dataset.settings import DatasetOptions
from lerobot_serve.tools.learning.steps import progress_of
from lerobot_serve.versions.file_hash import CountBytes, folder_sha256

CHANGED, NOT_CONVERTED, NOT_SELECTED = 'changed', 'not_converted', 'not_selected'
UNREADABLE = 'unreadable'
# a dataset whose copy takes no second
COPIED_BYTES = 256 << 20
Name = tuple[str, str]


def stage_bags(job: StageJob, report: Callable[[Report], None]) -> StageDone:
    """
    Add bags to a small dataset; beside a large one, which is copied for that, they stay in the
    staging folder until their round. Raises UserError for bags that do not agree, which their
    round converts one by one; OSError.
    """
    refusals: dict[str, RefusedBag] = {}
    whole = _new_bags(job, refusals)
    for refused in refusals.values():
        report(refused)
    if whole:
        files = (path for path in job.dataset.rglob('*') if path.is_file())
        joins = sum(path.stat().st_size for path in files) <= COPIED_BYTES
        try:
            _convert(job, whole, _ConversionReport(report), joins=joins)
        except (DatasetError, BagError) as error:
            raise UserError(str(error)) from error
    return StageDone(tuple(bag.sha256 for bag in job.bags))


def convert_bags(job: ConvertJob, report: Callable[[Report], None]) -> ConvertDone:
    """Return what the dataset has now. Raises UserError, BagError, OSError."""
    refusals: dict[str, RefusedBag] = {}
    whole = _new_bags(job, refusals)
    if whole:
        _Conversion(job, _ConversionReport(report), refusals).run(whole)
    there = names_in(job.dataset)
    for bag in whole:
        if (bag.client_id, bag.episode_id) not in there and bag.sha256 not in refusals:
            text = f'{bag.path} passes no filter, or has no row: see the log of the round'
            refusals[bag.sha256] = RefusedBag(bag.sha256, NOT_SELECTED, text)
    for refused in refusals.values():
        report(refused)
    return _done(job, there, refusals)


def _done(job: ConvertJob, there: Sequence[Name], refusals: dict[str, RefusedBag]) -> ConvertDone:
    converted = [bag for bag in job.bags if (bag.client_id, bag.episode_id) in set(there)]
    if not converted:
        why = next((each.text for each in refusals.values()), 'there is no bag')
        raise UserError(f'no episode could be converted: {why}')
    used = set(job.used)
    new = [(i, name) for i, name in enumerate(there) if name not in used]
    return ConvertDone(
        converted=tuple(bag.sha256 for bag in converted),
        new_episodes=tuple(i for i, _ in new),
        total_episodes=len(there),
        dataset_sha256=folder_sha256(job.dataset),
        new=tuple(name for _, name in new),
    )


def names_in(dataset: Path) -> list[Name]:
    """Return robot and id of each episode of a dataset, in its order. Raises DatasetError."""
    if not dataset.exists():
        return []
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in records.Existing.read(dataset).lines
    ]
    return [(line['robot'], line['episode_id']) for line in lines]


def _new_bags(job: Conversion, refusals: dict[str, RefusedBag]) -> list[BagToConvert]:
    """Return the whole bags that the dataset does not have."""
    there = names_in(job.dataset)
    wanted = [bag for bag in job.bags if (bag.client_id, bag.episode_id) not in there]
    return whole_bags(wanted, refusals)


def whole_bags(
    bags: Sequence[BagToConvert], refusals: dict[str, RefusedBag]
) -> list[BagToConvert]:
    """Return each bag at its first place where it is the announced one; refuse the others."""
    whole = []
    for bag in bags:
        faults = []
        for path in (bag.path, *bag.copies):
            fault = _fault(path, bag.sha256)
            if fault is None:
                whole.append(msgspec.structs.replace(bag, path=path))
                break
            faults.append(fault)
        else:
            refusals[bag.sha256] = faults[0]
            continue
        for fault in faults:
            print(f'{fault.text}; another copy of it is converted', flush=True)
    return whole


def _fault(path: Path, sha256: str) -> RefusedBag | None:
    """Return why a bag is not the announced one; None if it is."""
    try:
        if known_hash(bag_file(path)).sha256 == sha256:
            return None
    except (NotAnEpisode, OSError) as error:
        return RefusedBag(sha256, UNREADABLE, f'{path}: {error}')
    text = f'{path} is not the bag that was announced: its SHA-256 differs'
    return RefusedBag(sha256, CHANGED, text)


@dataclass(slots=True)
class _Conversion:
    job: ConvertJob
    report: _ConversionReport
    refusals: dict[str, RefusedBag]

    def run(self, bags: Sequence[BagToConvert]) -> None:
        """Convert, all bags or each by itself. Raises OSError, and UserError without LeRobot."""
        try:
            self._convert(bags)
        except (DatasetError, BagError) as error:
            if len(bags) == 1:
                self._refuse(bags[0], error)
                return
            # episodes that were written stay in the staging folder of the dataset
            for bag in bags:
                self.run([bag])

    def _refuse(self, bag: BagToConvert, error: Exception) -> None:
        text = f'{bag.path}: {error}'
        self.refusals[bag.sha256] = RefusedBag(bag.sha256, NOT_CONVERTED, text[:900])

    def _convert(self, bags: Sequence[BagToConvert]) -> None:
        try:
            _convert(self.job, bags, self.report)
        except OSError as error:
            out = self.job.dataset
            raise UserError(
                f'{out} cannot be written: {error}; {_free_mb(out)} MB are free there, and twice '
                'the dataset is needed while episodes join; make room'
            ) from error


def _convert(
    job: Conversion, bags: Iterable[BagToConvert], report: _ConversionReport, *, joins: bool = True
) -> None:
    options = DatasetOptions(append=True, filters=job.filters, vcodec=cast(Any, job.vcodec))
    convert([bag.path for bag in bags], job.dataset, options, report, joins=joins)


def _free_mb(out: Path) -> int:
    try:
        return shutil.disk_usage(out.parent).free // 1_000_000
    except OSError:
        return 0


class _ConversionReport:
    """Reports the progress of a conversion, and prints its notes into the log."""

    def __init__(self, report: Callable[[Report], None]) -> None:
        self._report = report

    def begin(self, what: str, total_bytes: int) -> CountBytes:
        print(what, flush=True)
        return progress_of(total_bytes, self._report)

    def note(self, text: str) -> None:
        print(text, flush=True)

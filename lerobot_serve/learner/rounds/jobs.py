# SPDX-License-Identifier: Apache-2.0
"""
Makes the jobs of a round, and keeps its folder: rounds/NUMBER-ATTEMPT in the folder of the
learner, of which the log stays. The thread `rounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import re
import shutil

from lerobot_serve.learner.memory import Memory, RoundRecord
from lerobot_serve.learner.rounds import settings
from lerobot_serve.learner.rounds.settings import LearnerSettings
from lerobot_serve.learner.steps import (
    BagToConvert,
    ConvertJob,
    Job,
    PublishJob,
    ScanJob,
    StageJob,
    TrainJob,
)
from lerobot_serve.learner.stock import Stock
from lerobot_serve.learner.versions import lineage
from lerobot_serve.versions.manifest import MANIFEST_FILE

ROUND = re.compile(r'(\d{6,})-(\d+)')
WORK, OUTPUT = 'work', 'output'
KEPT_LOGS = 50


class RoundJobs:
    """See the module. `total_episodes` are those of the dataset."""

    def __init__(self, settings: LearnerSettings, memory: Memory, stock: Stock) -> None:
        self._settings, self._memory, self._stock = settings, memory, stock
        self.total_episodes = 0

    # folders

    def folder(self, record: RoundRecord) -> Path:
        return self._settings.rounds / f'{record.number:06d}-{record.attempt}'

    def log(self, job: Job, record: RoundRecord | None) -> Path:
        """Return the file of what a step prints, in the folder of its round, if it is of one."""
        folder = self.folder(record) if record else self._settings.rounds
        return folder / f'{type(job).__name__.removesuffix("Job").lower()}.txt'

    def clear(self, record: RoundRecord) -> None:
        """Remove all of a round but the logs of its last attempts, and the oldest logs."""
        folders = sorted(self._folders())
        for number, _, folder in folders:
            if number <= record.number:
                for name in (WORK, OUTPUT):
                    shutil.rmtree(folder / name, ignore_errors=True)
        for _, _, folder in folders[:-KEPT_LOGS]:
            shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> list[tuple[int, int, Path]]:
        if not self._settings.rounds.is_dir():
            return []
        found = []
        for path in self._settings.rounds.iterdir():
            if match := ROUND.fullmatch(path.name):
                found.append((int(match[1]), int(match[2]), path))
        return found

    def has_output(self, record: RoundRecord) -> bool:
        return Path(record.output).is_dir()

    def has_version(self, version_id: str) -> bool:
        """Return whether the store still has a version."""
        return (self._settings.store / version_id / MANIFEST_FILE).is_file()

    # jobs

    def scan(self) -> ScanJob:
        folders = self._settings.parameters.episode_folders
        return ScanJob(tuple(Path(each).expanduser() for each in folders), self._settings.parent)

    def stage(self) -> StageJob:
        """Return the conversion ahead of a round of what no conversion was given."""
        wanted = {each.sha256 for each in self._stock.unstaged()}
        return StageJob(
            bags=tuple(each for each in self._bags() if each.sha256 in wanted),
            dataset=self._settings.dataset,
            filters=self._settings.parameters.episode_filters,
            vcodec=self._settings.parameters.vcodec,
        )

    def _bags(self) -> tuple[BagToConvert, ...]:
        return tuple(
            BagToConvert(path, each.sha256, each.client_id, each.episode_id, tuple(copies))
            for each, (path, *copies) in self._stock.bags()
        )

    def convert(self, record: RoundRecord) -> ConvertJob:
        line = lineage(record.parent, self._memory.versions())
        used = self._stock.of(sorted(self._memory.used_by([each.round for each in line])))
        return ConvertJob(
            bags=self._bags(),
            dataset=self._settings.dataset,
            filters=self._settings.parameters.episode_filters,
            vcodec=self._settings.parameters.vcodec,
            used=tuple((each.client_id, each.episode_id) for each in used),
        )

    def train(self, record: RoundRecord, new_episodes: Sequence[int], budget_s: float) -> TrainJob:
        folder = self.folder(record)
        return TrainJob(
            trainer=self._settings.parameters.trainer,
            parent=self._parent_folder(record.parent),
            dataset=self._settings.dataset,
            output=folder / OUTPUT,
            work=folder / WORK,
            new_episodes=frozenset(new_episodes),
            seed=self._settings.parameters.seed,
            budget_s=budget_s,
        )

    def _parent_folder(self, parent: str) -> Path:
        is_own = any(each.id == parent for each in self._memory.versions())
        if is_own or self._settings.parent is None:
            return self._settings.store / parent
        return self._settings.parent

    def publish(self, record: RoundRecord) -> PublishJob:
        episodes = self._stock.of(sorted(self._memory.used_by([record.number])))
        return PublishJob(
            store=self._settings.store,
            policy=Path(record.output),
            fingerprint=record.trained,
            parent=record.parent,
            dataset_sha256=record.dataset_sha256,
            note=settings.note_text(record.number, episodes, self.total_episodes),
            sources=self._settings.parameters.sources,
        )

# SPDX-License-Identifier: Apache-2.0
"""Writes episodes into the staging folder, each checked and committed at its end. One thread."""

from __future__ import annotations

from typing import Any

from lerobot_serve.tools.dataset import records
from lerobot_serve.tools.dataset.checking import check_dataset
from lerobot_serve.tools.dataset.features import Features
from lerobot_serve.tools.dataset.lerobot_writer import EpisodeWriter
from lerobot_serve.tools.dataset.plans.episodes import DatasetError, EpisodePlan
from lerobot_serve.tools.dataset.staging import Staging


class EpisodeSink:
    """Writes each episode into its staged dataset; several at a time for several robots."""

    def __init__(
        self, staging: Staging, names: dict[str, str], features: Features, vcodec: str
    ) -> None:
        self._staging, self._features, self._vcodec = staging, features, vcodec
        self.left = dict(names)
        self._open: dict[str, EpisodeWriter] = {}
        self._digests: dict[int, str] = {}

    def add(self, plan: EpisodePlan, row: dict[str, Any]) -> None:
        digest = self._digests.setdefault(id(plan), plan.digest)
        if digest not in self._open:
            self._open[digest] = EpisodeWriter(
                self._staging.part(self.left[digest]),
                self._features,
                fps=plan.fps,
                robot_type=plan.robot.description.name,
                rows=len(plan.rows),
                vcodec=self._vcodec,
            )
        self._open[digest].add(row)

    def end(self, plan: EpisodePlan) -> None:
        digest = self._digests[id(plan)]
        name = self.left[digest]
        writer = self._open[digest]
        writer.finish()
        del self._open[digest]
        faults = check_dataset(self._staging.part(name), decode=False)
        if faults:
            raise DatasetError(f'{plan.title} is not whole: ' + '; '.join(faults))
        self._staging.commit(name, records.episode_record(plan, digest))
        del self.left[digest]

    def give_up(self, plan: EpisodePlan) -> None:
        digest = self._digests.get(id(plan))
        if digest is not None and digest in self._open:
            self._open.pop(digest).abort()
            self._staging.discard(self.left[digest])

    def close(self) -> None:
        """Give up the episodes that are not at their end."""
        for digest, writer in self._open.items():
            writer.abort()
            self._staging.discard(self.left[digest])
        self._open.clear()

# SPDX-License-Identifier: Apache-2.0
"""
The newest episodes, for verdicts of people: without slot and policy, which would bias them. The
poll thread.
"""

from __future__ import annotations

from lerobot_serve.tools.dashboard.document.merge_patch import Json
from lerobot_serve.tools.dashboard.document.printed_numbers import bounded
from lerobot_serve.tools.operate.fleet_state import RobotView

KEPT = 100


class Episodes:
    """Rows by episode id; rows are replaced, never changed."""

    def __init__(self) -> None:
        self.rows: Json = {}

    def on_robot(self, old: RobotView | None, new: RobotView, at: str) -> None:
        """Note the begin and the end of an episode; `at` is the time of day."""
        before = old.edge.episode_id if old else ''
        if before == new.edge.episode_id:
            return
        if before in self.rows and 'ended' not in self.rows[before]:
            self._put(before, {**self.rows[before], 'ended': at})
        if new.edge.episode_id and new.edge.episode_id not in self.rows:
            row = {'robot': new.name, 'task': bounded(new.edge.task), 'began': at}
            self._put(new.edge.episode_id, row)

    def on_outcome(self, episode_id: str, outcome: str) -> None:
        """Note an outcome that was reported; one of an unknown episode has no row."""
        if episode_id in self.rows:
            self._put(episode_id, {**self.rows[episode_id], 'outcome': outcome})

    def _put(self, episode_id: str, row: Json) -> None:
        rows = {**self.rows, episode_id: row}
        while len(rows) > KEPT:
            del rows[next(iter(rows))]
        self.rows = rows

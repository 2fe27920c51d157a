# SPDX-License-Identifier: Apache-2.0
"""
What happened since the dashboard runs: decisions of a router, its evidence over time, and the
newest episodes. The poll thread adds; any thread reads the evidence.

Episodes are for verdicts of people: without slot and policy, which would bias them.
"""

from __future__ import annotations

from collections import deque
import threading

from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.dashboard.document.fleet_document import bounded, Json, rounded
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.rollout.rollout_view import bars, changes

DECISIONS, POINTS = 20, 2000


class Decisions:
    """The newest decisions of one router, newest first."""

    def __init__(self) -> None:
        self._kept: deque[Json] = deque(maxlen=DECISIONS)

    def add(self, old: RouterView, new: RouterView, at: str) -> None:
        """Note what differs between two states; `at` is the time of day."""
        found = changes(old, new)
        if not found:
            return
        has_moved = (old.canary.state, old.canary.step) != (new.canary.state, new.canary.step)
        why = f' ({new.canary.text})' if has_moved and new.canary.text else ''
        self._kept.appendleft({'at': at, 'text': bounded('; '.join(found) + why)})

    @property
    def rows(self) -> list[Json]:
        return list(self._kept)


class Evidence:
    """
    The evidence of one rollout over time. When it is full, every second point is dropped, so that
    a rollout of days keeps its whole course.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[tuple[int, float | None, float | None, int]] = []
        self._candidate = ''
        self._needed: tuple[float | None, float | None] = (None, None)

    def add(self, view: RouterView, settings: RouterParameters, now_ms: int) -> None:
        """Add a point when the evidence or the share changed."""
        canary = view.canary
        values = (
            rounded(canary.log10_evidence_not_worse, 3),
            rounded(canary.log10_evidence_worse, 3),
            canary.share_percent,
        )
        needed = {bar.decision: bar.needed for bar in bars(view, settings)}
        with self._lock:
            if canary.candidate_policy != self._candidate:
                self._candidate, self._needed = canary.candidate_policy, (None, None)
                self._points.clear()
            if needed:
                self._needed = (
                    rounded(needed['promote'], 3),
                    rounded(needed['roll back'], 3),
                )
            if not canary.candidate_policy or (self._points and self._points[-1][1:] == values):
                return
            self._points.append((now_ms, *values))
            if len(self._points) > POINTS:
                self._points = self._points[::2]

    def as_json(self) -> Json:
        """Return the columns for a chart."""
        with self._lock:
            points, (promote_at, roll_back_at) = list(self._points), self._needed
        times, not_worse, worse, shares = zip(*points, strict=True) if points else ((),) * 4
        return {
            't_ms': list(times),
            'not_worse': list(not_worse),
            'worse': list(worse),
            'share_percent': list(shares),
            'promote_at': promote_at,
            'roll_back_at': roll_back_at,
        }


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

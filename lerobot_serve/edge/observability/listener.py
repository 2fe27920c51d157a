"""
What an edge tells of itself: the plain cores call these, and need not know who hears it.

This one hears nothing; the recorder of a trace is one that does. Each call says whose thread it
is. None may raise or wait.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.episodes.active_episode import RunOutcome
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import ConnectionChange
from lerobot_serve.edge.session.tracker import RequestEnd
from lerobot_serve.wire.observation import Observation


class EdgeListener:
    """See the module."""

    def asked(self, request: Observation, *, server: str, request_bytes: int) -> None:
        """A request was sent. The request thread."""

    def ended(self, end: RequestEnd) -> None:
        """A request that got a number has ended, also one that was never sent. The same thread."""

    def changed(self, change: ConnectionChange) -> None:
        """The connection is in another state. Whoever brought it about, one at a time."""

    def ticked(
        self,
        now_ns: int,
        tick: int,
        executed: ExecutedStep | None,
        controller: Controller,
        say: Enum,
    ) -> None:
        """
        A control step is over; `executed` is None where nothing was to be commanded, `say` is who
        has the say over the robot. The tick thread, which has microseconds for it.
        """

    def dropped(self, totals: Counter[str]) -> None:
        """So much was dropped since start, by reason. Now and then, any thread."""

    def tuned(self, parameters: EdgeParameters) -> None:
        """Parameters were changed. The executor thread."""

    def judged(self, episode_id: str, outcome: int, text: str) -> None:
        """Somebody judged an episode of any robot, as EpisodeOutcome has it. The same thread."""

    def finished(self, episode_id: str, outcome: RunOutcome, text: str) -> None:
        """A run of RunEpisode is over. The same thread."""

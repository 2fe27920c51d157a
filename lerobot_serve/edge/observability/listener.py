# SPDX-License-Identifier: Apache-2.0
"""
Interface for observers of the edge; the plain cores call it.

The base class ignores all calls; the trace recorder implements them. Each method names its calling
thread. None may raise or block.
"""

from __future__ import annotations

from collections import Counter

from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.episodes.outcomes import RunOutcome
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import ConnectionChange
from lerobot_serve.edge.session.request import RequestEnd


class EdgeListener:
    """Ignores every notification."""

    def sent(self, request: Observation, *, server: str, request_bytes: int) -> None:
        """A request was sent. The request thread."""

    def ended(self, end: RequestEnd) -> None:
        """
        A request that got a number has ended, also one that was never sent. The request thread.
        """

    def changed(self, change: ConnectionChange) -> None:
        """The connection state changed. Any thread, one at a time."""

    def step_finished(
        self,
        now_ns: int,
        control_step: int,
        executed: ExecutedStep | None,
        controller: Controller,
        authority: ControlAuthority,
    ) -> None:
        """
        A control step is over; `executed` is None without a command, `authority` is the
        part that may command. The tick thread; must return within microseconds.
        """

    def dropped(self, totals: Counter[str]) -> None:
        """Totals of drops since start, by reason. Periodic, any thread."""

    def parameters_changed(self, parameters: EdgeParameters) -> None:
        """Parameters were changed. The executor thread."""

    def outcome_received(self, episode_id: str, outcome: int, text: str) -> None:
        """An EpisodeOutcome of any robot arrived. The executor thread."""

    def run_finished(self, episode_id: str, outcome: RunOutcome, text: str) -> None:
        """A run of RunEpisode is over. The executor thread."""

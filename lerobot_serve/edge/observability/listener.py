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
from lerobot_serve.edge.episode_outcomes import RunOutcome
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import ConnectionChange
from lerobot_serve.edge.session.request import RequestEnd
from lerobot_serve.telemetry.durations import Histogram


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


# servers choose slot names freely: bounds the number of series
SLOTS = ('prod', 'a', 'b')
OTHER_SLOT = 'other'


class ReplyStats:
    """
    Since start, of merged chunks by slot: round trip times and their share outside the server; and
    the number of superseded requests.
    """

    def __init__(self) -> None:
        self.round_trips = {slot: Histogram() for slot in (*SLOTS, OTHER_SLOT)}
        self.network = {slot: Histogram() for slot in (*SLOTS, OTHER_SLOT)}
        self.superseded = 0
        self._superseded_before = 0

    def begin_session(self) -> None:
        """Reset the reference of the server's superseded count."""
        self._superseded_before = 0

    def add(self, slot: str, superseded: int, *, round_trip_s: float, network_s: float) -> None:
        """Count a chunk; `superseded` is the server's count since the session was opened."""
        name = slot if slot in SLOTS else OTHER_SLOT
        self.round_trips[name].add(round_trip_s)
        self.network[name].add(network_s)
        self.superseded += max(0, superseded - self._superseded_before)
        self._superseded_before = superseded

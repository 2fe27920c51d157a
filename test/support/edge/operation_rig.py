# SPDX-License-Identifier: Apache-2.0
"""A robot in the hands of an operator: control steps, an operator control, and no server."""

from __future__ import annotations

from types import SimpleNamespace

from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.observability.reports import EdgeView
from lerobot_serve.edge.session.connection import ConnectionEvent
from lerobot_serve.edge.takeover import PersonInput, Takeover
from support.edge.controller_rig import Bench as Tick
from support.edge.requester_rig import Bench as Requests

DEAD = (ConnectionEvent.CHUNK_MERGED, ConnectionEvent.SESSION_LOST, ConnectionEvent.INCOMPATIBLE)


class Robot:
    """An operation around a controller and a requester, whose thread does not run."""

    def __init__(
        self, *, run_on_start: bool = True, device: PersonInput | None = None, **tick: object
    ) -> None:
        self.tick, self.requests = Tick(**tick), Requests()
        self.rests: list[bool] = []
        controller, requester = self.tick.controller, self.requests.requester
        set_idle = requester.set_idle
        requester.set_idle = lambda *, idle: (self.rests.append(idle), set_idle(idle=idle))
        begin = requester.begin_episode
        # of a robot the two have one queue
        requester.begin_episode = lambda episode: (self.tick.queue.clear(), begin(episode))
        decisions = self.tick.decisions
        self.operation = OperatorControl(
            controller,
            requester,
            Takeover(device, decisions),
            decisions,
            run_on_start=run_on_start,
        )

    def view_with(self, beat: SimpleNamespace) -> EdgeView:
        """Return what reports and metrics read; `beat` has the control steps."""
        return EdgeView(
            self.requests.requester,
            self.tick.controller,
            self.operation,
            self.requests.actions,
            self.requests.history,
            beat,
        )

    def live(self, steps: int = 1) -> list[float | None]:
        """Return what is commanded in so many control steps."""
        commands = []
        for _ in range(steps):
            self.tick.person = self.operation.takeover.read(self.tick.now_ns)
            self.tick.orders = self.operation.update(self.tick.person.intervention)
            commands += self.tick.commands(1)
        return commands

    def lives_through(self, *events: ConnectionEvent) -> None:
        for event in events:
            self.requests.connection.handle(event, 'told so')
        self.operation.update()

"""
What a router looks at again and again, and tells: who is there, robots that are gone, states.

The executor's thread; what takes time is handed to the control thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from lerobot_serve.router.api.messages import shadow_summary
from lerobot_serve.router.core import replica_report, RouterCore
from lerobot_serve.router.monitoring import reports
from lerobot_serve.router.monitoring.trace_recorder import RouterTraceRecorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.sessions.job_queue import JobQueue
from lerobot_serve.router.shadow.feed import ShadowFeed


@dataclass(frozen=True, slots=True)
class NodeContext:
    """
    The node, as far as its rooms know of it: its full name, monotonic nanoseconds, the present as
    messages have it, how operators are warned, and how they hear of what is well again.
    """

    name: str
    clock: Callable[[], int]
    stamp: Callable[[], Any]
    warn: Callable[[str], None]
    inform: Callable[[str], None]


class ReplicaPresence(Protocol):
    """Tells whether anybody offers a server's services, as ros.replica_clients does."""

    def is_there(self, server: str) -> bool: ...


class OperatorTopics(Protocol):
    """What operators see, as ros.router_topics has it."""

    def tell(self, message: Any) -> None: ...


class HealthMonitor:
    """See the module. `close_session` ends one robot's; the control thread calls it."""

    def __init__(
        self,
        serving: RouterCore,
        presence: ReplicaPresence,
        topics: OperatorTopics,
        jobs: JobQueue,
        close_session: Callable[[str, int], ClientSession | None],
        here: NodeContext,
        *,
        feed: ShadowFeed | None,
        recorder: RouterTraceRecorder | None,
    ) -> None:
        self._serving, self._presence, self._topics = serving, presence, topics
        self._jobs, self._close_session, self._here = jobs, close_session, here
        self._feed, self._recorder = feed, recorder
        self._verdict = ''
        # slot -> policy as written down last; None until the router begins
        self._recorded_policies: dict[str, str] | None = None
        self._is_maintenance_queued = False

    def on_status(self, server: str, status: Any) -> None:
        """A replica tells of itself."""
        text = self._serving.learn(server, replica_report(status))
        if text:
            self._here.warn(text)
        if self._recorded_policies not in (None, self._policies()):
            self.record_policies()

    def record_policies(self) -> None:
        """Write down which policy each slot has; again whenever that changes."""
        self._recorded_policies = self._policies()
        if self._recorder:
            self._recorder.policies(self._serving.slots)

    def _policies(self) -> dict[str, str]:
        return {name: slot.policy for name, slot in self._serving.slots.items()}

    def look(self, parameters: RouterParameters, *, is_open: bool) -> None:
        """Several times a second: who is there, and what that comes to."""
        for server in self._serving.replicas:
            self._serving.note_there(server, is_there=self._presence.is_there(server))
        if not is_open:
            return
        if self._serving.update_canary():
            self._topics.tell(self._serving.canary.report(self._here.stamp()))
        before, self._verdict = self._verdict, self._serving.verdict
        if self._verdict != before:
            self._publish_health(before, self._state(parameters))

    def _publish_health(self, before: str, state: Any) -> None:
        if self._recorder:
            self._recorder.state('slots', before, self._verdict, state.text)
        say = self._here.inform if self._verdict == 'healthy' else self._here.warn
        say(f'{self._verdict}: {state.text}' if state.text else self._verdict)
        self._topics.tell(state)

    def poll_slowly(
        self, has_subscriber: Callable[[str], bool], parameters: RouterParameters
    ) -> None:
        """Once a second: robots that are gone, sessions that are missing, states."""
        self._serving.look()
        now_ns = self._here.clock()
        for robot, reason in self._serving.dispatcher.robots.gone(now_ns, has_subscriber):
            self._jobs.put(partial(self._let_go, robot, reason))
        if not self._is_maintenance_queued:
            self._is_maintenance_queued = True
            self._jobs.put(self._maintain_sessions)
        state, stamp = self._state(parameters), self._here.stamp()
        self._topics.tell(state)
        self._topics.tell(reports.diagnostics(state, name=self._here.name))
        self._topics.tell(self._serving.canary.report(stamp))
        if self._feed:
            self._topics.tell(self._shadow_summary(self._feed, stamp))

    def _shadow_summary(self, feed: ShadowFeed, stamp: Any) -> Any:
        summary, parameters = feed.summary(), self._serving.parameters
        least = parameters.shadow_minimum_hours, parameters.shadow_minimum_episodes
        lacking = self._serving.qualification.lacking(summary.shadow_policy, *least)
        return shadow_summary(summary, lacking, feed.drops(), stamp)

    def _state(self, parameters: RouterParameters) -> Any:
        return reports.router_state(
            self._serving,
            stamp=self._here.stamp(),
            server=self._here.name,
            split_percent=parameters.split_percent,
            drops=self._serving.drops.counts(),
        )

    # control thread

    def _let_go(self, robot: ClientSession, reason: str) -> None:
        """A robot is gone; unless it has closed its session meanwhile, or another look has."""
        if self._close_session(robot.ask.client_id, robot.ask.session_epoch):
            self._serving.drops.add(reason)
            self._here.warn(f'closed the session of {robot.ask.client_id!r}: {reason}')

    def _maintain_sessions(self) -> None:
        try:
            self._serving.control.check_replicas()
            self._serving.control.maintain_sessions()
        finally:
            self._is_maintenance_queued = False

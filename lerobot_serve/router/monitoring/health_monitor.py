# SPDX-License-Identifier: Apache-2.0
"""
Poll and publish: availability of replicas, expired sessions, the state of the router.

The executor's thread; slow work is queued for the thread `control`.
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
    What parts of the router use of their node: its full name, monotonic nanoseconds, the stamp of
    messages, and the log for warnings and information.
    """

    name: str
    clock: Callable[[], int]
    stamp: Callable[[], Any]
    warn: Callable[[str], None]
    inform: Callable[[str], None]


class ReplicaPresence(Protocol):
    """Whether the services of a server are available, as ros.replica_clients has it."""

    def is_there(self, server: str) -> bool: ...


class OperatorTopics(Protocol):
    """Publishes messages for operators, as ros.router_publishers has it."""

    def publish(self, message: Any) -> None: ...


class HealthMonitor:
    """See the module. The thread `control` calls `close_session`."""

    def __init__(
        self,
        core: RouterCore,
        presence: ReplicaPresence,
        topics: OperatorTopics,
        jobs: JobQueue,
        close_session: Callable[[str, int], ClientSession | None],
        here: NodeContext,
        *,
        feed: ShadowFeed | None,
        recorder: RouterTraceRecorder | None,
    ) -> None:
        self._core, self._presence, self._topics = core, presence, topics
        self._jobs, self._close_session, self._here = jobs, close_session, here
        self._feed, self._recorder = feed, recorder
        self._verdict = ''
        # slot -> policy as recorded last; None until the router starts
        self._recorded_policies: dict[str, str] | None = None
        self._is_maintenance_queued = False

    def on_status(self, server: str, status: Any) -> None:
        """Record the status of a replica."""
        text = self._core.update_replica(server, replica_report(status))
        if text:
            self._here.warn(text)
        if self._recorded_policies not in (None, self._policies()):
            self.record_policies()

    def record_policies(self) -> None:
        """Record the policy of each slot, at the start and after a change."""
        self._recorded_policies = self._policies()
        if self._recorder:
            self._recorder.policies(self._core.slots)

    def _policies(self) -> dict[str, str]:
        return {name: slot.policy for name, slot in self._core.slots.items()}

    def poll(self, parameters: RouterParameters, *, is_open: bool) -> None:
        """Several times a second: update availability, canary and overall health."""
        for server in self._core.replicas:
            self._core.set_available(server, is_there=self._presence.is_there(server))
        if not is_open:
            return
        if self._core.update_canary():
            self._topics.publish(self._core.canary.report(self._here.stamp()))
        before, self._verdict = self._verdict, self._core.health
        if self._verdict != before:
            self._publish_health(before, self._state(parameters))

    def _publish_health(self, before: str, state: Any) -> None:
        if self._recorder:
            self._recorder.state('slots', before, self._verdict, state.text)
        log = self._here.inform if self._verdict == 'healthy' else self._here.warn
        log(f'{self._verdict}: {state.text}' if state.text else self._verdict)
        self._topics.publish(state)

    def poll_slowly(
        self, has_subscriber: Callable[[str], bool], parameters: RouterParameters
    ) -> None:
        """Once a second: close expired sessions, open missing ones, publish states."""
        self._core.expire_episodes()
        now_ns = self._here.clock()
        for robot, reason in self._core.dispatcher.robots.gone(now_ns, has_subscriber):
            self._jobs.put(partial(self._close_expired, robot, reason))
        if not self._is_maintenance_queued:
            self._is_maintenance_queued = True
            self._jobs.put(self._maintain_sessions)
        state, stamp = self._state(parameters), self._here.stamp()
        self._topics.publish(state)
        self._topics.publish(reports.diagnostics(state, name=self._here.name))
        self._topics.publish(self._core.canary.report(stamp))
        if self._feed:
            self._topics.publish(self._shadow_summary(self._feed, stamp))

    def _shadow_summary(self, feed: ShadowFeed, stamp: Any) -> Any:
        summary, parameters = feed.summary(), self._core.parameters
        least = parameters.shadow_minimum_hours, parameters.shadow_minimum_episodes
        lacking = self._core.qualification.unmet_requirements(summary.shadow_policy, *least)
        return shadow_summary(summary, lacking, feed.drops(), stamp)

    def _state(self, parameters: RouterParameters) -> Any:
        return reports.router_state(
            self._core,
            stamp=self._here.stamp(),
            server=self._here.name,
            split_percent=parameters.split_percent,
            drops=self._core.drops.counts(),
        )

    # control thread

    def _close_expired(self, robot: ClientSession, reason: str) -> None:
        """Close an expired session, unless it was closed meanwhile."""
        if self._close_session(robot.ask.client_id, robot.ask.session_epoch):
            self._core.drops.add(reason)
            self._here.warn(f'closed the session of {robot.ask.client_id!r}: {reason}')

    def _maintain_sessions(self) -> None:
        try:
            self._core.control.check_replicas()
            self._core.control.maintain_sessions()
        finally:
            self._is_maintenance_queued = False

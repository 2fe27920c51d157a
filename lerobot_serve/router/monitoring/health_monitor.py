# SPDX-License-Identifier: Apache-2.0
"""
Poll the availability of replicas and expired sessions, and publish the state of the router.

The executor thread; slow work is queued for the thread `control`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.router.api.messages import shadow_summary
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.links import ReplicaConnections
from lerobot_serve.router.monitoring import reports
from lerobot_serve.router.monitoring.change_detector import (
    canary_digest,
    ChangeDetector,
    router_digest,
)
from lerobot_serve.router.replicas.slot import overall_health
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve_interfaces.msg import RouterState

# a reason that changes all the time, as the progress of loading, is logged this often
REASON_INTERVAL_NS = 10 * 10**9


class HealthMonitor:
    """See the module."""

    def __init__(
        self, core: RouterCore, presence: ReplicaConnections, context: NodeContext
    ) -> None:
        self._core, self._presence = core, presence
        self._publish, self._context = core.links.publish, context
        self._health, self._logged_reason, self._logged_ns = '', '', 0
        # slot -> last recorded policy; None until the router starts
        self._recorded_policies: dict[str, str] | None = None
        self._is_maintenance_queued = False
        # replicas that were ready at the last poll
        self._ready = set(core.replicas)
        self._router_changes = ChangeDetector(
            lambda: router_digest(core.table, context.clock(), core.storage_problem)
        )
        self._canary_changes = ChangeDetector(lambda: canary_digest(core.canary.canary))

    def on_status(self, server: str, status: ServerStatus) -> None:
        """Record the status of a replica."""
        text = self._core.update_replica(server, status)
        if text:
            self._context.log_warning(text)
        if self._recorded_policies not in (None, self._policies()):
            self.record_policies()

    def record_policies(self) -> None:
        """Record the policy of each slot. At the start and after a change."""
        self._recorded_policies = self._policies()
        if self._core.recorder:
            self._core.recorder.policies(self._core.slots)

    def _policies(self) -> dict[str, str]:
        return {name: slot.policy for name, slot in self._core.slots.items()}

    def poll(self) -> None:
        """
        Update availability, canary and overall health, and publish what has changed. Several
        times per second.
        """
        core = self._core
        if core.shared:
            core.shared.poll(self._context.clock())
        for server in core.replicas:
            core.set_available(
                server,
                is_available=self._presence.is_available(server),
                link_problem=self._presence.link_problem(server),
            )
        if not core.is_open:
            return
        now_ns = self._context.clock()
        has_event = core.update_canary()
        if has_event or self._canary_changes.is_due(now_ns):
            self._publish_canary()
        ready = {name for name, replica in core.replicas.items() if replica.is_ready}
        if ready != self._ready:
            # the sessions of robots are opened there, or elsewhere, now, not with the slow poll
            self._queue_maintenance()
        self._ready = ready
        before, self._health = self._health, overall_health(core.slots)
        if self._health != before:
            state = self._publish_state()
            if core.recorder:
                core.recorder.state('slots', before, self._health, state.text)
            self._log_health(state)
        elif self._router_changes.is_due(now_ns):
            self._publish_state()

    def _queue_maintenance(self) -> None:
        if not self._is_maintenance_queued:
            self._is_maintenance_queued = True
            self._core.jobs.put(self._maintain_sessions)

    def _publish_canary(self) -> None:
        self._canary_changes.on_published(self._context.clock())
        self._publish(self._core.canary.report(self._context.stamp()))

    def _publish_state(self) -> RouterState:
        # the digest first: a change after it is published with the next poll
        self._router_changes.on_published(self._context.clock())
        state = self._state()
        self._publish(state)
        return state

    def _log_health(self, state: RouterState) -> None:
        self._logged_reason, self._logged_ns = state.text, self._context.clock()
        # no health is known yet, before the first poll
        text = reports.health_text(self._health, state.text)
        (self._context.log_info if text == reports.HEALTHY else self._context.log_warning)(text)

    def poll_slowly(self, has_subscriber: Callable[[str], bool]) -> None:
        """Close expired sessions, open missing ones and publish states. Once per second."""
        core, context = self._core, self._context
        core.expire_episodes()
        for session, reason in core.table.sessions.expired(context.clock(), has_subscriber):
            core.jobs.put(partial(self._close_expired, session, reason))
        self._queue_maintenance()
        state = self._publish_state()
        is_due = context.clock() - self._logged_ns >= REASON_INTERVAL_NS
        if state.text and state.text != self._logged_reason and is_due:
            # the health stayed as it was
            self._log_health(state)
        self._publish(reports.diagnostics(state, name=context.name))
        self._publish_canary()
        if core.feed:
            summary = core.feed.comparator.summary()
            unmet = core.unmet_requirements(summary.shadow_policy)
            self._publish(shadow_summary(summary, unmet, core.feed.drops(), context.stamp()))

    def _state(self) -> RouterState:
        return reports.router_state(
            self._core.table,
            self._core.dispatcher.hedging,
            self._core.drops.counts(),
            context=self._context,
            storage_problem=self._core.storage_problem,
        )

    # control thread

    def _close_expired(self, session: ClientSession, reason: str) -> None:
        """Close an expired session, unless it was closed meanwhile."""
        if self._core.close_session(session.request.client_id, session.request.session_epoch):
            self._core.drops.add(reason)
            self._context.log_warning(
                f'closed the session of {session.request.client_id!r}: {reason}'
            )

    def _maintain_sessions(self) -> None:
        try:
            self._core.session_manager.check_replicas()
            self._core.session_manager.maintain_sessions()
        finally:
            self._is_maintenance_queued = False

# SPDX-License-Identifier: Apache-2.0
"""One policy server behind the router: its report, health, latency and counters."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from lerobot_serve.contract.records import ReplicaState as ReplicaStateMessage
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.contract.schema import StateClass
from lerobot_serve.router.replicas.health import Health
from lerobot_serve.router.replicas.latency import RecentLatency

# a replica is unresponsive after MAX_CONSECUTIVE_LATE late replies, without a reply for
# SILENCE_FACTOR hedge delays
MAX_CONSECUTIVE_LATE = 3
SILENCE_FACTOR = 4
NO_STATUS_SINCE_RETURN_TEXT = 'available again; no status received yet'
ReplicaState = ReplicaStateMessage.State
STATELESS = (StateClass.CHUNK_STATELESS, StateClass.NEEDS_HISTORY)


def is_serving(status: ServerStatus) -> bool:
    """Return whether a server runs its policy for clients."""
    return status.state == ServerStatus.State.ACTIVE and status.warmed_up


class Replica:
    """Guarded by RoutingTable.lock; reports may read it from any thread."""

    def __init__(self, name: str, slot: str, health: Health) -> None:
        self.name, self.slot, self.health = name, slot, health
        self.latency = RecentLatency()
        self.report: ServerStatus | None = None
        # its policy before its last swap, empty without one, and when the swap was seen
        self.replaced_policy, self.swapped_ns = '', 0
        self.is_available = False
        # whether it has sent a status, and its services were there ever since
        self.has_status = False
        # why the link cannot use it, with the remedy; empty when it can
        self.link_problem = ''
        # why its policy does not match the slot; empty when it does
        self.mismatch = ''
        # sessions of this router at the replica, and those that prefer it
        self.sessions = 0
        self.preferring_sessions = 0
        self.consecutive_late = 0
        # reports by which the server holds no session any more
        self.session_losses = 0
        # sending time of the first request since the last reply
        self.silent_since_ns: int | None = None
        self.counts: Counter[str] = Counter()

    @property
    def state(self) -> ReplicaState:
        if self.report is None:
            return ReplicaState.UNKNOWN
        if not (self.is_available and is_serving(self.report)):
            return ReplicaState.UNAVAILABLE
        if self.mismatch:
            return ReplicaState.POLICY_MISMATCH
        return ReplicaState.READY if self.health.is_healthy else ReplicaState.UNHEALTHY

    @property
    def is_ready(self) -> bool:
        return self.state is ReplicaState.READY

    @property
    def is_reachable(self) -> bool:
        """Whether the replica can serve its slot, healthy or not."""
        return self.state in (ReplicaState.READY, ReplicaState.UNHEALTHY)

    @property
    def is_stateless(self) -> bool:
        """Whether the policy keeps no state between requests."""
        return self.report is not None and self.report.state_class in STATELESS

    @property
    def policy(self) -> str:
        """The policy of the last report; empty without a report."""
        return self.report.policy if self.report else ''

    @property
    def load(self) -> float:
        """The load of the last report; 0 without a report."""
        return self.report.load if self.report else 0.0

    @property
    def max_sessions(self) -> int:
        """Sessions that the replica can hold, at least 1."""
        return max(1, self.report.max_sessions) if self.report else 1

    @property
    def placement_load(self) -> float:
        """Load including preferring sessions, to select the least loaded replica."""
        if self.report is None:
            return 0.0
        return self.preferring_sessions / self.max_sessions + self.load

    @property
    def text(self) -> str:
        """Why the replica is not ready; empty when it is."""
        state = self.state
        if self.link_problem:
            return self.link_problem
        if self.report is None:
            return 'no status received; check that it runs, the ROS domain and the name'
        if state is ReplicaState.UNAVAILABLE:
            return (self.report.text if self.is_available else '') or 'server unavailable'
        if state is ReplicaState.POLICY_MISMATCH:
            return self.mismatch
        if state is ReplicaState.UNHEALTHY:
            return self.health.reason
        return ''

    def record_report(self, report: ServerStatus, now_ns: int = 0) -> None:
        """
        Record a report. A server that is inactive, or serves another policy than before, has
        closed its sessions, however short that was; after a swap they are open.
        """
        before, self.report = self.report, report
        self.is_available = self.has_status = True
        is_other = before is not None and before.policy != report.policy
        # whether its policy has been replaced under open sessions
        has_swapped = (
            before is not None and is_serving(before) and report.swap != ServerStatus.Swap.NONE
        )
        if before and is_other:
            self.replaced_policy = before.policy if has_swapped else ''
            self.swapped_ns = now_ns
        self.session_losses += not is_serving(report) or (is_other and not has_swapped)

    def record_swap(self, policy: str, now_ns: int) -> None:
        """Record a policy that replies before the status which names it."""
        if self.report:
            self.replaced_policy, self.swapped_ns = self.report.policy, now_ns
            self.report = replace(self.report, policy=policy, swap=ServerStatus.Swap.DONE)

    def set_available(self, *, is_available: bool) -> None:
        """
        Record whether the services of the replica are available. When they are lost, the last
        report is marked inactive: a server that returns may be another process.
        """
        if self.is_available and not is_available and self.report:
            self.report = replace(
                self.report, state=ServerStatus.State.INACTIVE, text=NO_STATUS_SINCE_RETURN_TEXT
            )
            self.has_status = False
        self.is_available = is_available

    def request_sent(self, now_ns: int) -> None:
        """Record a request that was sent."""
        if self.silent_since_ns is None:
            self.silent_since_ns = now_ns

    def reply_received(self) -> None:
        """Record a reply of any kind."""
        self.silent_since_ns, self.consecutive_late = None, 0

    def record_late(self, waited_ns: int, now_ns: int) -> bool:
        """Record a reply that is late by now; return whether the replica is unresponsive."""
        self.consecutive_late += 1
        if self.silent_since_ns is None or self.consecutive_late < MAX_CONSECUTIVE_LATE:
            return False
        return now_ns - self.silent_since_ns >= SILENCE_FACTOR * waited_ns

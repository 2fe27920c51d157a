# SPDX-License-Identifier: Apache-2.0
"""One policy server behind the router: its report, health, latency and counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import IntEnum

from lerobot_serve.router.replicas.health import Health, HealthRules
from lerobot_serve.router.replicas.latency import RecentLatency
from lerobot_serve.wire.schema import StateClass

# a replica is unresponsive after this many late replies in a row, and no reply for this many
# times the hedge delay
MAX_CONSECUTIVE_LATE = 3
SILENCE_FACTOR = 4
NO_STATUS_SINCE_RETURN_TEXT = 'available again; no status received yet'
STATELESS = (StateClass.CHUNK_STATELESS, StateClass.NEEDS_HISTORY)


class ReplicaState(IntEnum):
    """The values of ReplicaState.state."""

    UNKNOWN = 0
    READY = 1
    UNHEALTHY = 2
    UNAVAILABLE = 3
    POLICY_MISMATCH = 4


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The part of ServerStatus that the router uses."""

    policy: str
    slot: str
    state_class: int
    is_active: bool
    load: float = 0.0
    sessions: int = 0
    max_sessions: int = 1
    text: str = ''


class Replica:
    """Owned by the dispatcher's lock; reports may read it from any thread."""

    def __init__(self, name: str, slot: str, rules: HealthRules) -> None:
        self.name, self.slot = name, slot
        self.health = Health(rules)
        self.latency = RecentLatency()
        self.report: ReplicaReport | None = None
        self.is_there = False
        # why its policy does not match the slot; empty when it does
        self.mismatch = ''
        # sessions of this router at the replica, and those that prefer it
        self.sessions = 0
        self.robots = 0
        self.consecutive_late = 0
        # when the first request was sent without a reply since
        self.silent_since_ns: int | None = None
        self.counts: Counter[str] = Counter()

    @property
    def state(self) -> ReplicaState:
        if self.report is None:
            return ReplicaState.UNKNOWN
        if not (self.is_there and self.report.is_active):
            return ReplicaState.UNAVAILABLE
        if self.mismatch:
            return ReplicaState.POLICY_MISMATCH
        return ReplicaState.READY if self.health.is_healthy else ReplicaState.UNHEALTHY

    @property
    def is_ready(self) -> bool:
        return self.state is ReplicaState.READY

    @property
    def is_reachable(self) -> bool:
        """Whether it serves its slot, healthy or not."""
        return self.state in (ReplicaState.READY, ReplicaState.UNHEALTHY)

    @property
    def is_stateless(self) -> bool:
        """Whether its policy keeps no state between requests."""
        return self.report is not None and self.report.state_class in STATELESS

    @property
    def placement_load(self) -> float:
        """Sessions and load, for placement on the least loaded replica."""
        if self.report is None:
            return 0.0
        return self.robots / max(1, self.report.max_sessions) + self.report.load

    @property
    def text(self) -> str:
        """Why it is not ready; empty when it is."""
        state = self.state
        if state is ReplicaState.UNKNOWN:
            return 'no status received; check that it runs, the ROS domain and the name'
        if state is ReplicaState.UNAVAILABLE:
            unavailable = 'server unavailable'
            return (self.report.text if self.is_there else '') or unavailable
        if state is ReplicaState.POLICY_MISMATCH:
            return self.mismatch
        if state is ReplicaState.UNHEALTHY:
            return self.health.reason
        return ''

    def set_available(self, *, is_there: bool) -> None:
        """
        Record whether its services are available. Its last report is marked inactive when they
        are lost: a server that comes back may be another process.
        """
        if self.is_there and not is_there and self.report:
            self.report = replace(self.report, is_active=False, text=NO_STATUS_SINCE_RETURN_TEXT)
        self.is_there = is_there

    def request_sent(self, now_ns: int) -> None:
        """Record a request that was sent."""
        if self.silent_since_ns is None:
            self.silent_since_ns = now_ns

    def reply_received(self) -> None:
        """Record a reply of any kind."""
        self.silent_since_ns, self.consecutive_late = None, 0

    def record_late(self, waited_ns: int, now_ns: int) -> bool:
        """Record a late reply; return whether the replica is unresponsive."""
        self.consecutive_late += 1
        if self.silent_since_ns is None or self.consecutive_late < MAX_CONSECUTIVE_LATE:
            return False
        return now_ns - self.silent_since_ns >= SILENCE_FACTOR * waited_ns

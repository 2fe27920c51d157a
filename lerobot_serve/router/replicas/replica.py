"""One policy server behind the router: what it says of itself, and how it has answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import IntEnum

from lerobot_serve.router.replicas.health import Health, HealthRules
from lerobot_serve.router.replicas.latency import RecentLatency
from lerobot_serve.wire.schema import StateClass

# so many late answers in a row, and nothing else from it for so many times as long as one is late
# after, and it is not waited for any more; who was idle before has that time, too
MAX_CONSECUTIVE_LATE = 3
SILENCE_FACTOR = 4
NO_STATUS_SINCE_RETURN_TEXT = 'it is there again, and has not told of itself yet'
STATELESS = (StateClass.CHUNK_STATELESS, StateClass.NEEDS_HISTORY)


class ReplicaState(IntEnum):
    """ReplicaState.state."""

    UNKNOWN = 0
    READY = 1
    SUSPECT = 2
    AWAY = 3
    STRANGER = 4


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What its status says."""

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
        self.seen: ReplicaReport | None = None
        self.is_there = False
        # why it may not serve its slot
        self.stranger = ''
        # sessions that this router has open there, and robots whose first choice it is
        self.sessions = 0
        self.robots = 0
        self.late = 0
        # since when it owes an answer and nothing has come from it
        self.silent_since_ns: int | None = None
        self.counts: Counter[str] = Counter()

    @property
    def standing(self) -> ReplicaState:
        if self.seen is None:
            return ReplicaState.UNKNOWN
        if not (self.is_there and self.seen.is_active):
            return ReplicaState.AWAY
        if self.stranger:
            return ReplicaState.STRANGER
        return ReplicaState.READY if self.health.is_healthy else ReplicaState.SUSPECT

    @property
    def is_ready(self) -> bool:
        return self.standing is ReplicaState.READY

    @property
    def is_reachable(self) -> bool:
        """Whether it serves its slot; it may have failed lately."""
        return self.standing in (ReplicaState.READY, ReplicaState.SUSPECT)

    @property
    def is_stateless(self) -> bool:
        """Whether any replica may answer any request."""
        return self.seen is not None and self.seen.state_class in STATELESS

    @property
    def placement_load(self) -> float:
        """How full and busy it is; the least loaded is asked."""
        if self.seen is None:
            return 0.0
        return self.robots / max(1, self.seen.max_sessions) + self.seen.load

    @property
    def text(self) -> str:
        """Why it is not ready, in words."""
        standing = self.standing
        if standing is ReplicaState.UNKNOWN:
            return 'not heard of yet; is it running, in this ROS domain, under this name?'
        if standing is ReplicaState.AWAY:
            return self.seen.text or 'it has gone' if self.is_there else 'it has gone'
        if standing is ReplicaState.STRANGER:
            return self.stranger
        if standing is ReplicaState.SUSPECT:
            return self.health.reason
        return ''

    def note_there(self, *, is_there: bool) -> None:
        """
        Note whether anybody offers its services. What it said of itself was said by a process that
        may be another one when somebody does so again.
        """
        if self.is_there and not is_there and self.seen:
            self.seen = replace(self.seen, is_active=False, text=NO_STATUS_SINCE_RETURN_TEXT)
        self.is_there = is_there

    def asked(self, now_ns: int) -> None:
        """Note that it was sent a request."""
        if self.silent_since_ns is None:
            self.silent_since_ns = now_ns

    def heard(self) -> None:
        """Note that something has come from it."""
        self.silent_since_ns, self.late = None, 0

    def is_late(self, waited_ns: int, now_ns: int) -> bool:
        """Note a late answer; return whether it has fallen silent."""
        self.late += 1
        if self.silent_since_ns is None or self.late < MAX_CONSECUTIVE_LATE:
            return False
        return now_ns - self.silent_since_ns >= SILENCE_FACTOR * waited_ns

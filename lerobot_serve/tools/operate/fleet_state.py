# SPDX-License-Identifier: Apache-2.0
"""The states that routers and edges publish, as plain data. Immutable; any thread."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.records import EdgeState, SlotState
from lerobot_serve.router.canary.states import CanaryPhase

# names of the constants of messages
SLOT_STATES = tuple(SlotState.State.__members__)
EDGE_STATES = tuple(EdgeState.State.__members__)
RUNGS = tuple(EdgeState.Rung.__members__)
# of a robot that publishes nothing now; its other values are old
SILENT = 'SILENT'
CHAMPION_SLOT, CANDIDATE_SLOT = 'a', 'b'


@dataclass(frozen=True, slots=True)
class GuardView:
    """
    What one guard measures in a step, and its limit now; `value` is None without data, `limit` 0
    when it is off. `alarm` is the evidence as a share of what rolls back.
    """

    name: str
    unit: str = '%'
    value: float | None = None
    limit: float = 0.0
    samples: int = 0
    minimum_samples: int = 0
    alarm: float = 0.0

    @property
    def is_off(self) -> bool:
        return not self.limit

    @property
    def headroom(self) -> float | None:
        """The share of the limit that is left; negative above the limit, None if unknown."""
        return None if self.value is None or self.is_off else 1 - self.value / self.limit


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One policy server of a slot; `state` is a name of ReplicaState."""

    server: str
    state: str = 'UNKNOWN'
    text: str = ''
    policy: str = ''
    chunks: int = 0
    latency_ms_p95: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot; `state` is one of SLOT_STATES. Counts are since the start of the router."""

    slot: str
    policy: str = ''
    state: str = 'HEALTHY'
    text: str = ''
    share_percent: int = 0
    chunks: int = 0
    requests_failed: int = 0
    replicas: tuple[ReplicaView, ...] = ()

    @property
    def latency_ms_p95(self) -> float:
        """The largest p95 of its replicas [ms]; 0 before the first reply."""
        return max((replica.latency_ms_p95 for replica in self.replicas), default=0.0)


@dataclass(frozen=True, slots=True)
class CanaryView:
    """The canary of a router; evidence is a decimal logarithm, -1 an unknown number."""

    phase: CanaryPhase = CanaryPhase.OFF
    candidate: str = ''
    champion: str = ''
    step: int = 0
    step_count: int = 0
    share_percent: int = 0
    text: str = ''
    remaining_episodes: int = -1
    candidate_successes: int = 0
    candidate_failures: int = 0
    champion_successes: int = 0
    champion_failures: int = 0
    evidence_not_worse: float = 0.0
    evidence_worse: float = 0.0
    step_elapsed_s: float = 0.0
    # the policy for which the plan was started; empty if unknown
    planned: str = ''
    guards: tuple[GuardView, ...] = ()
    # promoted, and rolled back by itself if it is worse after all
    is_watched: bool = False

    @property
    def waits_for_start(self) -> bool:
        """Whether slot b serves another policy than the one of the plan."""
        is_other = bool(self.planned and self.candidate and self.planned != self.candidate)
        return self.phase is CanaryPhase.WAITING and is_other


@dataclass(frozen=True, slots=True)
class RouterView:
    """A router with its slots and its canary. `age_s` is the time since its state arrived."""

    name: str
    health: str = ''
    text: str = ''
    split_percent: int = 0
    slots: tuple[SlotView, ...] = ()
    canary: CanaryView = CanaryView()
    age_s: float = 0.0

    def slot(self, name: str) -> SlotView | None:
        """Return a slot; None if the router has none of this name."""
        return next((slot for slot in self.slots if slot.slot == name), None)


@dataclass(frozen=True, slots=True)
class ShadowView:
    """
    The comparison of a shadow with the live policy, None for what is not known yet; `unmet` is
    what the candidate lacks.
    """

    policy: str = ''
    hours: float = 0.0
    episodes: int = 0
    samples: int = 0
    divergence: float | None = None
    cage_trips: int = 0
    latency_ms_p95: float | None = None
    unmet: str = ''


@dataclass(frozen=True, slots=True)
class RobotView:
    """
    A robot; `state` is one of EDGE_STATES or SILENT, `rung` one of RUNGS. `age_s` is how long a
    silent one has sent nothing; None if unknown, or if it is not silent.
    """

    node: str
    client_id: str = ''
    state: str = 'CONNECTING'
    rung: str = 'POLICY'
    paused: bool = False
    intervention: str = 'NONE'
    reason: str = ''
    server: str = ''
    slot: str = ''
    policy: str = ''
    episode_id: str = ''
    task: str = ''
    queue_remaining_s: float = 0.0
    action_age_s: float = 0.0
    round_trip_ms: float = 0.0
    stalls: int = 0
    cage_trips: int = 0
    age_s: float | None = None

    @property
    def is_silent(self) -> bool:
        return self.state == SILENT

    @property
    def name(self) -> str:
        """The namespace of the edge, as operators write it; the node name without one."""
        return self.node.rpartition('/')[0].strip('/') or self.node.strip('/')

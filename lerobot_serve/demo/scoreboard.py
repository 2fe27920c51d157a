# SPDX-License-Identifier: Apache-2.0
"""
Figures of a run of the demo over time.

The executor thread deposits, the main thread reads; a lock keeps related figures consistent. Times
are seconds since 1970, for the charts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
import threading

from lerobot_serve.demo.arm_animation import ArmClip, ArmFrame


@dataclass(frozen=True, slots=True)
class EndedEpisode:
    """One episode with its outcome."""

    time_s: float
    robot: str
    policy: str
    success: bool
    duration_s: float


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """One event: for the list of events and, with a short `mark`, in plots."""

    time_s: float
    text: str
    mark: str = ''


@dataclass(slots=True)
class RobotStatus:
    """
    State and figures of one robot. `max_action_gap_s` is the longest time between two policy
    actions of an episode, `max_episode_gap_s` that between two episodes.
    """

    state: str = '?'
    # count of stalls when the queue last held actions
    stalls_when_last_playing: int = 0
    reason: str = ''
    policy: str = ''
    slot: str = ''
    server: str = ''
    stalls: int = 0
    chunks: int = 0
    cage_trips: int = 0
    ticks: int = 0
    control_steps_missed: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    round_trip_ms: float = 0.0
    queue_s: float = 0.0
    executed: int = 0
    max_action_age_s: float = 0.0
    last_action_s: float = 0.0
    last_action_episode: str = ''
    max_action_gap_s: float = 0.0
    max_episode_gap_s: float = 0.0

    def set_state(self, state: str, stalls: int) -> None:
        """
        Set the state; IDLE when the queue is empty and the edge counts no stall: between episodes,
        or paused.
        """
        is_idle = state == 'STALLED' and stalls == self.stalls_when_last_playing
        if state != 'STALLED':
            self.stalls_when_last_playing = stalls
        self.state, self.stalls = ('IDLE' if is_idle else state), stalls

    def add_action(self, now_s: float, episode_id: str, age_s: float) -> None:
        """Add an action of a policy."""
        since_s = now_s - self.last_action_s if self.last_action_s else 0.0
        if episode_id == self.last_action_episode:
            self.max_action_gap_s = max(self.max_action_gap_s, since_s)
        else:
            self.max_episode_gap_s = max(self.max_episode_gap_s, since_s)
        self.last_action_s, self.last_action_episode = now_s, episode_id
        self.max_action_age_s = max(self.max_action_age_s, age_s)


@dataclass(slots=True)
class CanaryStatus:
    """State of the canary."""

    state: str = 'off'
    share_percent: int = 0
    step: int = 0
    steps: int = 0
    text: str = ''
    candidate: str = ''
    champion: str = ''
    successes: int = 0
    failures: int = 0

    @property
    def reason(self) -> str:
        """The text without its leading state."""
        return self.text.removeprefix(f'{self.state.replace("_", " ")}: ')


@dataclass(slots=True)
class ShadowStatus:
    """State of the policy in shadow."""

    policy: str = ''
    live: str = ''
    episodes: int = 0
    samples: int = 0
    divergence: float = float('nan')
    trips: int = 0
    latency_ms_p50: float = 0.0
    unmet_requirements: str = ''


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One policy server of a slot, as reported by the router."""

    state: str
    answers: int


@dataclass(slots=True)
class SlotStatus:
    """One slot of the router."""

    state: str = '?'
    text: str = ''
    policy: str = ''
    share_percent: int = 0
    episodes: int = 0
    failures: int = 0
    episodes_moved_away: int = 0
    replicas: dict[str, ReplicaStatus] = field(default_factory=dict)


class Scoreboard:
    """Hold `lock` to read several related figures."""

    def __init__(self, robots: list[str]) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Event()
        self.robots = {name: RobotStatus() for name in robots}
        self.canary, self.shadow = CanaryStatus(), ShadowStatus()
        self.slots: dict[str, SlotStatus] = {}
        self.health = ''
        self.ended_episodes: list[EndedEpisode] = []
        self.events: list[DemoEvent] = []
        # episode -> its policy
        self.policy_of_episode: dict[str, str] = {}
        self.placements: list[tuple[float, str]] = []
        self.ages_ms: list[float] = []
        # over time: share of the candidate, round trips of each policy, divergence
        self.shares: list[tuple[float, float]] = []
        self.round_trips_ms: dict[str, list[tuple[float, float]]] = {}
        self.divergences: list[tuple[float, float]] = []
        # robot -> position of its target; (robot, version) -> motion of the arm
        self.targets: dict[str, tuple[float, float]] = {}
        self.clips: dict[tuple[str, str], ArmClip] = {}

    def add_event(self, time_s: float, text: str, mark: str = '') -> None:
        """Add an event to the list and, with a mark, to the plots. Any thread."""
        with self.lock:
            self.events.append(DemoEvent(time_s, text, mark))
        self.changed.set()

    def add_arm_frame(self, robot: str, frame: ArmFrame) -> None:
        """Add the pose of an arm, under the policy that controls it. Executor."""
        with self.lock:
            version = version_of(self.robots[robot].policy)
            if version:
                self.clips.setdefault((robot, version), ArmClip()).add(frame)

    def longest_clip(self, version: str) -> list[ArmFrame]:
        """Return the longest clip of a version, empty when it controlled no robot."""
        with self.lock:
            clips = [clip for (_, of), clip in self.clips.items() if of == version]
            longest = max(clips, key=lambda clip: clip.length_s, default=ArmClip())
            return list(longest.frames)

    def slot(self, name: str) -> SlotStatus:
        """Return the state of a slot, unknown before the first message."""
        return self.slots.get(name) or SlotStatus()

    def replica_state(self, slot: str, server: str) -> str:
        """Return the state of a server at the router, empty before the first message."""
        found = self.slot(slot).replicas.get(server)
        return found.state if found else ''

    def busiest(self, slot: str) -> str:
        """Return the server of a slot with the most replies."""
        replicas = self.slot(slot).replicas
        return max(replicas, key=lambda name: replicas[name].answers)

    def successes(self) -> dict[str, tuple[int, int]]:
        """Return the number of successful and of all episodes of each policy."""
        with self.lock:
            ended = list(self.ended_episodes)
        good = Counter(each.policy for each in ended if each.success)
        return {name: (good[name], of) for name, of in Counter(e.policy for e in ended).items()}

    def first_placed(self, version: str, after_s: float = 0.0) -> float | None:
        """Return the time of the first episode placed with a version, None without one."""
        with self.lock:
            placements = list(self.placements)
        return next((t for t, p in placements if t > after_s and version_of(p) == version), None)

    def placed_after(self, version: str, time_s: float) -> int:
        """Return the number of episodes placed with a version after a time."""
        with self.lock:
            return sum(t > time_s and version_of(p) == version for t, p in self.placements)


def version_of(policy: str) -> str:
    """Return the name before the @ of a fingerprint."""
    return policy.partition('@')[0]

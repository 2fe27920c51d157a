# SPDX-License-Identifier: Apache-2.0
"""
What happens in a run of the demo: episodes, the motion of the arms, events of the router.

The executor thread deposits, the main thread reads; a lock keeps related figures consistent. Times
are seconds since 1970, for the charts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
import threading

from lerobot_serve.contract.records import SlotState
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView

# in the place of a policy, for episodes in which a person commanded
CORRECTED = 'corrected'
# length and frame rate of a shown clip, and how much is recorded to choose it from
CLIP_S, FRAMES_HZ, RECORDED_S = 9.0, 12.0, 20.0
# a longer gap between two frames ends the clip
GAP_S = 1.0
# an outcome and the first frame with the next target arrive in any order, so close to each other
SETTLE_S = 0.2
DRAINED = SlotState.State.DRAINED
# phase of the canary -> label of its begin
PHASE_MARKS = {
    CanaryPhase.PAUSED: 'paused',
    CanaryPhase.PROMOTED: 'promoted',
    CanaryPhase.ROLLED_BACK: 'rolled back',
}


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
    """One event: for the story of its act and, with a short `mark`, in plots."""

    time_s: float
    text: str
    mark: str = ''
    act: str = ''


class Scoreboard:
    """Hold `lock` to read several related figures."""

    def __init__(self, robots: list[str]) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Event()
        self.robots = {name: RobotView(edge_node_name(name)) for name in robots}
        self.ended_episodes: list[EndedEpisode] = []
        self.events: list[DemoEvent] = []
        # episode -> its policy
        self.policy_of_episode: dict[str, str] = {}
        # those in which a person commanded
        self.corrected_episodes: set[str] = set()
        self.placements: list[tuple[float, str]] = []
        # robot -> when its arm first moved
        self.first_motions_s: dict[str, float] = {}
        # robot -> position of its target; (robot, version) -> motion of the arm
        self.targets: dict[str, tuple[float, float]] = {}
        self.clips: dict[tuple[str, str], ArmClip] = {}

    def add_event(self, time_s: float, text: str, mark: str = '', act: str = '') -> None:
        """Add an event to the story and, with a mark, to the plots. Any thread."""
        with self.lock:
            self.events.append(DemoEvent(time_s, text, mark, act))
        self.changed.set()

    def add_arm_frame(self, robot: str, frame: ArmFrame) -> None:
        """Add the pose of an arm, under the policy that controls it. Executor."""
        with self.lock:
            version = version_of(self.robots[robot].edge.policy)
            if version:
                self.clips.setdefault((robot, version), ArmClip()).add(frame)

    def add_outcome(self, episode: EndedEpisode) -> None:
        """Add an ended episode, also to the clip of its robot. Executor."""
        with self.lock:
            self.ended_episodes.append(episode)
            clip = self.clips.get((episode.robot, version_of(episode.policy)))
            if clip:
                clip.add_outcome(episode.time_s, episode.success)
        self.changed.set()

    def typical_clip(self, version: str) -> ArmClip:
        """Return the clip of a version that is most like all its episodes, empty without one."""
        with self.lock:
            ended = [e.success for e in self.ended_episodes if version_of(e.policy) == version]
            rate = sum(ended) / len(ended) if ended else 0.0
            clips = [clip for (_, of), clip in self.clips.items() if of == version]
            windows = [window for clip in clips for window in clip.windows()]
        return max(windows, key=lambda window: window.likeness(rate), default=ArmClip())

    def is_recorded(self, version: str) -> bool:
        """Return whether one robot has a whole clip of a version."""
        with self.lock:
            return any(clip.is_full for (_, of), clip in self.clips.items() if of == version)

    def successes(self) -> dict[str, tuple[int, int]]:
        """Return the number of successful and of all episodes of each policy."""
        with self.lock:
            ended = list(self.ended_episodes)
        good = Counter(each.policy for each in ended if each.success)
        return {name: (good[name], of) for name, of in Counter(e.policy for e in ended).items()}

    def first_placed(self, version: str) -> float | None:
        """Return the time of the first episode placed with a version, None without one."""
        with self.lock:
            placements = list(self.placements)
        return next((t for t, p in placements if version_of(p) == version), None)

    def placed_after(self, version: str, time_s: float) -> int:
        """Return the number of episodes placed with a version, '' for any, after a time."""
        with self.lock:
            return sum(t > time_s and version in ('', version_of(p)) for t, p in self.placements)


def version_of(policy: str) -> str:
    """Return the name before the @ of a fingerprint."""
    return policy.partition('@')[0]


def named(successes: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return counts by the name of a policy, by its fingerprint where others have that name."""
    names = Counter(map(version_of, successes))
    return {
        version_of(policy) if names[version_of(policy)] == 1 else policy: counts
        for policy, counts in successes.items()
    }


def edge_node_name(robot: str) -> str:
    """Return the full name of a robot's edge controller."""
    return f'/{robot}/edge_controller'


@dataclass(frozen=True, slots=True)
class ArmFrame:
    """The arm at one time: its two joints [rad], and the target [m] ahead and to the left."""

    time_s: float
    shoulder_rad: float
    elbow_rad: float
    target_xy: tuple[float, float]


@dataclass(slots=True)
class ArmClip:
    """The first RECORDED_S of one robot under one version without a gap, with the outcomes."""

    frames: list[ArmFrame] = field(default_factory=list)
    # time, and whether the target was reached
    outcomes: list[tuple[float, bool]] = field(default_factory=list)

    def add(self, frame: ArmFrame) -> None:
        """Add a frame; frames above the frame rate are skipped."""
        since_s = frame.time_s - self.frames[-1].time_s if self.frames else GAP_S
        if since_s < 0.9 / FRAMES_HZ or self.is_full:
            return
        if self.frames and since_s > GAP_S:
            # keep a clip of at least half the length instead of starting another one
            if self.length_s >= CLIP_S / 2:
                return
            self.frames, self.outcomes = [], []
        self.frames.append(frame)

    def add_outcome(self, time_s: float, success: bool) -> None:
        """Add an outcome; one outside the clip is skipped."""
        if self.frames and time_s <= self.frames[-1].time_s + SETTLE_S:
            self.outcomes.append((time_s, success))

    def windows(self) -> Iterator[ArmClip]:
        """Yield the clips of at most CLIP_S that begin with a target."""
        before = None
        for number, frame in enumerate(self.frames):
            if frame.target_xy != before:
                yield self._window(number)
            before = frame.target_xy

    def _window(self, first: int) -> ArmClip:
        begin_s = self.frames[first].time_s
        frames = [each for each in self.frames[first:] if each.time_s - begin_s <= CLIP_S]
        begin_s, end_s = begin_s + SETTLE_S, frames[-1].time_s + SETTLE_S
        return ArmClip(frames, [each for each in self.outcomes if begin_s < each[0] <= end_s])

    def likeness(self, success_rate: float) -> tuple[bool, float, float]:
        """
        Return the sort key of clips of a version, the most like all its episodes last: at least
        half the length, then a success rate near to that of all, then the length.
        """
        reached = sum(success for _, success in self.outcomes)
        own = reached / len(self.outcomes) if self.outcomes else 2.0
        return self.length_s >= CLIP_S / 2, -abs(own - success_rate), self.length_s

    @property
    def is_full(self) -> bool:
        return self.length_s >= RECORDED_S

    @property
    def length_s(self) -> float:
        return self.frames[-1].time_s - self.frames[0].time_s if self.frames else 0.0


def router_events(before: RouterView, after: RouterView) -> Iterator[tuple[str, str]]:
    """Yield the text and the label of each promotion, step, rollback, drain and restore."""
    old, new = before.canary, after.canary
    if new.state in PHASE_MARKS and new.state is not old.state:
        yield f'rollout of {new.candidate_policy}: {new.text}', PHASE_MARKS[new.state]
    elif new.state in ON_TRIAL and (old.state not in ON_TRIAL or old.step != new.step):
        yield f'{new.share_percent} % of new episodes to slot b', f'{new.share_percent} %'
    for slot in after.state.slots:
        earlier = before.slot(slot.slot)
        was_drained = earlier is not None and earlier.state is DRAINED
        if slot.state is DRAINED and earlier is not None and not was_drained:
            yield f'slot {slot.slot} is drained: {slot.text}', f'{slot.slot} drained'
        elif was_drained and slot.state is not DRAINED:
            yield f'slot {slot.slot} is restored', f'{slot.slot} restored'

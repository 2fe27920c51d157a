# SPDX-License-Identifier: Apache-2.0
"""Two slots whose counters grow, and canaries that look at them."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.canary.facts import BEGUN, EpisodeEvent, Facts, SlotFacts
from lerobot_serve.router.canary.plan import parse_plan
from lerobot_serve.router.canary.record import CanaryEvent
from lerobot_serve.router.parameters import RouterParameters

S = 1_000_000_000
STEPS = ('5', '25', '50', '100')
NEW, OLD = 'new@1', 'old@2'
ANSWERS, COMMANDS = 20, 400
ROBOTS = 7


def terms(**bounds: float) -> RouterParameters:
    """Return parameters with these error bounds."""
    return RouterParameters(**{f'canary_{name}': value for name, value in bounds.items()})


# decided by few episodes
QUICK = terms(margin=0.4, false_promotion=0.5, false_rollback=0.05)


def whats(happenings: tuple[CanaryEvent, ...]) -> list[str]:
    return [happening.what for happening in happenings]


def plan(*steps: str, episodes: int = 10, seconds: float = 60.0):
    return parse_plan(steps or STEPS, minimum_episodes=episodes, minimum_s=seconds)


class World:
    """Both slots, healthy and as fast as each other, and one canary."""

    def __init__(self, canary: Canary | None = None) -> None:
        self.canary = canary or Canary(plan(), QUICK)
        self.candidate = SlotFacts(healthy=True, policy=NEW, latency_ms_p95=50.0)
        self.champion = SlotFacts(healthy=True, policy=OLD, latency_ms_p95=50.0)
        self.others: dict[str, object] = {}
        self.now_ns = 0
        self.numbers = count()
        # how episodes end that the next look sees, and verdicts that come by name
        self.ends: dict[str, list[str]] = {'candidate': [], 'champion': []}
        self.later: list[EpisodeEvent] = []

    @property
    def facts(self) -> Facts:
        return Facts(self.candidate, self.champion, **self.others)

    @property
    def seen(self) -> Facts:
        """What the canary has seen in this step."""
        return self.canary.step_facts(self.facts)

    def poll(self, *, after_s: float = 1.0) -> tuple[CanaryEvent, ...]:
        self.now_ns += int(after_s * S)
        return self.canary.update(self.now_ns, replace(self.facts, events=self.events()))

    def events(self) -> tuple[EpisodeEvent, ...]:
        """Take what happened since the last look; episodes of both arms begin in turn."""
        rows = sorted(
            ((i + 0.5) / len(ends), arm, what)
            for arm, ends in self.ends.items()
            for i, what in enumerate(ends)
        )
        events = [event for _, arm, what in rows for event in self.episode(arm, what)]
        self.ends = {'candidate': [], 'champion': []}
        later, self.later = self.later, []
        return (*events, *later)

    def episode(self, arm: str, what: str) -> list[EpisodeEvent]:
        number = next(self.numbers)
        name = f'episode {number}'
        begun = EpisodeEvent(name, BEGUN, arm, f'robot {number % ROBOTS}')
        return [begun] if what == 'open' else [begun, EpisodeEvent(name, what, arm)]

    def verdicts(self, arm: str, what: str) -> None:
        """Let all open episodes of an arm end so, at the next look."""
        names = [name for name, its in self.canary.open_episodes.items() if its == arm]
        self.later += [EpisodeEvent(name, what, arm) for name in names]

    def wait(self, seconds: float) -> None:
        """Look every 50 s."""
        while seconds > 0:
            self.poll(after_s=min(50.0, seconds))
            seconds -= 50.0

    def change(self, slot: str, **values: object) -> None:
        setattr(self, slot, replace(getattr(self, slot), **values))

    def grow(self, slot: str, **more: int) -> None:
        """Let counters of a slot grow."""
        now = getattr(self, slot)
        self.change(slot, **{name: getattr(now, name) + count for name, count in more.items()})

    def end(self, slot: str, success: int = 0, failure: int = 0, **others: int) -> None:
        """Let episodes end, each way spread evenly, with their replies and commands."""
        ways = {'success': success, 'failure': failure, **others}
        rows = sorted((((i + 0.5) / n), what) for what, n in ways.items() for i in range(n))
        self.ends[slot] += [what for _, what in rows]
        self.grow(slot, replies=ANSWERS * len(rows), commands=COMMANDS * len(rows))

    def good_episodes(self) -> None:
        """Let enough episodes of both end well."""
        self.end('candidate', 18, 2)
        self.end('champion', 90, 10)

    def start(self) -> World:
        """Bring the canary to its first step."""
        self.poll()
        self.poll()
        return self

    def to_step(self, step: int) -> World:
        """Bring the canary so far by its own rules."""
        self.start()
        while self.canary.step < step:
            before = self.canary.step
            self.good_episodes()
            self.wait(100)
            assert self.canary.step == before + 1, self.canary.text
        return self


def started(**changes: object) -> World:
    """Return a world whose canary runs its first step."""
    values = {'plan': plan(), 'rules': QUICK, **changes}
    return World(Canary(**values)).start()

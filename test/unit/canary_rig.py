"""Two slots whose counters grow, and canaries that look at them."""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.canary.facts import Facts, SlotFacts
from lerobot_serve.router.canary.guards import Limits
from lerobot_serve.router.canary.plan import parse_plan, Terms
from lerobot_serve.router.canary.record import Happening

S = 1_000_000_000
STEPS = ('5', '25', '50', '100')
# decided by few episodes
QUICK = Terms(margin=0.4, false_promotion=0.3, false_rollback=0.05, settle_s=0.0)
NEW, OLD = 'new@1', 'old@2'
ANSWERS, COMMANDS = 20, 400


def whats(happenings: tuple[Happening, ...]) -> list[str]:
    return [happening.what for happening in happenings]


def plan(*steps: str, episodes: int = 10, seconds: float = 60.0):
    return parse_plan(steps or STEPS, minimum_episodes=episodes, minimum_s=seconds)


class World:
    """Both slots, healthy and as fast as each other, and one canary."""

    def __init__(self, canary: Canary | None = None) -> None:
        self.canary = canary or Canary(plan(), QUICK, Limits())
        self.candidate = SlotFacts(healthy=True, policy=NEW, latency_ms_p95=50.0)
        self.champion = SlotFacts(healthy=True, policy=OLD, latency_ms_p95=50.0)
        self.others: dict[str, object] = {}
        self.now_ns = 0

    @property
    def facts(self) -> Facts:
        return Facts(self.candidate, self.champion, **self.others)

    def look(self, *, after_s: float = 1.0) -> tuple[Happening, ...]:
        self.now_ns += int(after_s * S)
        return self.canary.look(self.now_ns, self.facts)

    def wait(self, seconds: float) -> None:
        """Look every 50 s."""
        while seconds > 0:
            self.look(after_s=min(50.0, seconds))
            seconds -= 50.0

    def change(self, slot: str, **values: object) -> None:
        setattr(self, slot, replace(getattr(self, slot), **values))

    def grow(self, slot: str, **more: int) -> None:
        """Let counters of a slot grow."""
        now = getattr(self, slot)
        self.change(slot, **{name: getattr(now, name) + count for name, count in more.items()})

    def end(self, slot: str, successes: int = 0, failures: int = 0, **others: int) -> None:
        """Let episodes end, with their answers and commands."""
        count = successes + failures + sum(others.values())
        traffic = {'answers': ANSWERS * count, 'commands': COMMANDS * count}
        self.grow(
            slot, episodes=count, successes=successes, failures=failures, **others, **traffic
        )

    def good_episodes(self) -> None:
        """Let enough episodes of both end well."""
        self.end('candidate', 18, 2)
        self.end('champion', 90, 10)

    def start(self) -> World:
        """Bring the canary to its first step."""
        self.look()
        self.look()
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
    values = {'plan': plan(), 'terms': QUICK, 'limits': Limits(), **changes}
    return World(Canary(values['plan'], values['terms'], values['limits'])).start()

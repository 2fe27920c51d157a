"""
The smallest number of servers that holds the goals in simulation, and the curve around it. Pure.

More servers are never worse, but for chance at the edge: a number counts only if the next two hold
the goals as well. The search goes up from the least in growing steps, then halves the last step;
every number that was tried is a point of the curve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
import math

from lerobot_serve.planning.demand import Fleet, Service
from lerobot_serve.planning.formula import counted
from lerobot_serve.planning.simulation import simulate
from lerobot_serve.planning.sums import Sums

# so much of the time robots may want to ask and still wait for the answer before
HELD_LIMIT = 0.01
# shares of the least, for the shape of the curve
SHAPE = (0.5, 0.75)
AROUND = (-1, 0, 1, 2)
# the number itself, and those that show that it was not luck
SURE = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Trial:
    """How long, and with which seed; in a second run a server dies when half of it is over."""

    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class Point:
    """
    What so many servers do: `calm` when all goes well, `death` when one dies in the middle; and
    the goals that are missed then, in words.
    """

    servers: int
    calm: Sums
    death: Sums
    calm_misses: tuple[str, ...]
    death_misses: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not (self.calm_misses or self.death_misses)


@dataclass(frozen=True, slots=True)
class Plan:
    """
    `points` by number of servers, up to `limit`. `servers` is the smallest number that holds every
    goal, `without_spare` the smallest as long as none dies, None when there is none; `reason` says
    why no number can be enough, and is empty when one could.
    """

    points: tuple[Point, ...]
    limit: int
    without_spare: int | None
    servers: int | None
    reason: str

    @property
    def shown(self) -> Point:
        """The point that matters most: the result, or what comes closest to one."""
        wanted = self.servers or self.without_spare or self.limit
        return min(self.points, key=lambda point: abs(point.servers - wanted))


def plan(
    fleet: Fleet, service: Service, trial: Trial, limit: int, also: tuple[int, ...] = ()
) -> Plan:
    """Return how many servers are needed, of 1 to `limit`; `also` are points of the curve, too."""
    tried: dict[int, Point] = {}
    runs = Runs(fleet, service, trial)

    def point(servers: int) -> Point:
        if servers not in tried:
            tried[servers] = runs.point(servers)
        return tried[servers]

    least = at_least(fleet, service, limit)
    never, fragile = impossible(fleet, service), fragile_anyway(fleet, service)
    without_spare = servers = None
    if not never:
        without_spare = smallest(
            lambda n: all(not point(m).calm_misses for m in sure(n, limit)), least, limit
        )
    if without_spare and not fragile:
        # one more than the least: a run is too short to show that the rest is a little too slow
        low = min(limit, max(without_spare, least + 1))
        servers = smallest(lambda n: all(point(m).holds for m in sure(n, limit)), low, limit)
    shape = [round(share * least) for share in SHAPE]
    around = [offset + (servers or without_spare or least) for offset in AROUND]
    for number in (*shape, *around, *also):
        if 1 <= number <= limit:
            point(number)
    points = tuple(point(number) for number in sorted(tried))
    return Plan(points, limit, without_spare, servers, never or fragile)


def sure(servers: int, limit: int) -> list[int]:
    """Return which numbers have to hold the goals, so that this one does for sure."""
    return [servers + more for more in SURE if servers + more <= limit]


def at_least(fleet: Fleet, service: Service, limit: int) -> int:
    """Return the number below which robots wait to ask for longer than they may."""
    most = service.robots_within((1 + HELD_LIMIT) * fleet.period_s)
    return min(limit, math.ceil(fleet.robots / max(1, most)))


def smallest(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest number of `low` to `high` for which it holds, None when none does."""
    step, tried = 1, low
    while not holds(tried):
        if tried == high:
            return None
        low, tried, step = tried + 1, min(high, tried + step), 2 * step
    high = tried
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


class Runs:
    """The simulations of one fleet; none is done twice."""

    def __init__(self, fleet: Fleet, service: Service, trial: Trial) -> None:
        self._fleet, self._service, self._trial = fleet, service, trial
        self.calm = cache(self._run)

    def point(self, servers: int) -> Point:
        """Return what so many servers do."""
        calm, death = self.calm(servers), self._run(servers, self._trial.seconds / 2)
        # those that are left have to do all the work; what all cannot do they cannot either
        can_keep_up = calm.held_share <= HELD_LIMIT
        rest = calm if not can_keep_up else self.calm(servers - 1) if servers > 1 else None
        return Point(
            servers, calm, death, calm_misses(calm, self._fleet), death_misses(death, rest)
        )

    def _run(self, servers: int, dies_at_s: float | None = None) -> Sums:
        trial = self._trial
        return simulate(
            self._fleet,
            self._service,
            servers,
            seconds=trial.seconds,
            seed=trial.seed,
            dies_at_s=dies_at_s,
        )


def calm_misses(calm: Sums, fleet: Fleet) -> tuple[str, ...]:
    """Return the goals that are missed when all goes well, in words."""
    late_ms, left_ms = calm.answer_ms(99), 1e3 * fleet.left_s
    found = []
    if calm.held_share > HELD_LIMIT:
        found.append(f'a server cannot keep up: {waiting(calm)}')
    if late_ms is None or late_ms > left_ms:
        took = 'no answer came' if late_ms is None else f'p99 of an answer is {late_ms:.0f} ms'
        found.append(f'{took}, and {left_ms:.0f} ms are left to play when a robot asks')
    if calm.stalled:
        found.append(stalling(calm))
    return tuple(found)


def death_misses(death: Sums, rest: Sums | None) -> tuple[str, ...]:
    """Return what goes wrong when one dies, in words."""
    found = [f'when one dies, {stalling(death)}'] if death.stalled else []
    if rest is None:
        found.append('when one dies, none is left')
    elif rest.held_share > HELD_LIMIT:
        found.append(f'when one dies, a server cannot keep up: {waiting(rest)}')
    return tuple(found)


def waiting(sums: Sums) -> str:
    return f'its robots have to wait before they may ask for {sums.held_share:.0%} of the time'


def stalling(sums: Sums) -> str:
    verb = 'stalls' if sums.stalled == 1 else 'stall'
    return f'{counted(sums.stalled, "robot")} {verb}, together {sums.stalled_s:.1f} s'


def impossible(fleet: Fleet, service: Service) -> str:
    """Return why no number of servers is enough, empty when one could be."""
    left_s, own_s = fleet.left_s, fleet.network_s + service.first_s
    own_share = fleet.rate_hz * service.first_s
    if left_s <= 0:
        return (
            f'a chunk can be played for {fleet.playable_s:.4g} s, and the next is asked for after '
            f'{fleet.period_s:.4g} s: ask more often, or let chunks be longer'
        )
    if own_share > 1 + HELD_LIMIT:
        return (
            f'one robot alone asks for {own_share:.0%} of the time of a server: ask less often, '
            'or make the policy faster'
        )
    if own_s > left_s:
        return (
            f'network and policy alone take {own_s:.4g} s, and {left_s:.4g} s are left to play '
            'when a robot asks: ask earlier, let chunks be longer, or make network or policy '
            'faster'
        )
    return ''


def fragile_anyway(fleet: Fleet, service: Service) -> str:
    """Return why robots may stall when one dies, however many are left; empty when none need."""
    late_s = fleet.failover_s + fleet.network_s + service.first_s
    if late_s <= fleet.left_s:
        return ''
    return (
        f'when a server dies, its robots wait {late_s:.4g} s for an answer, of which '
        f'{fleet.failover_s:.4g} s pass until that is noticed, and {fleet.left_s:.4g} s are left '
        'to play when a robot asks: notice it sooner, ask earlier, or let chunks be longer'
    )

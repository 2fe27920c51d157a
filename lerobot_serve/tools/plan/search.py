# SPDX-License-Identifier: Apache-2.0
"""
Find the smallest number of servers that meets the goals in simulation, and its curve. Pure.

Near the limit a run may meet the goals by chance: a number counts only if the next two meet the
goals as well. The search rises from the minimum in growing steps, then bisects the last step. Each
simulated number is a point of the curve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
import math

from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime, SimulationResult, with_noun
from lerobot_serve.tools.plan.simulation import simulate_fleet

# largest share of time with a due request and another one in flight
BLOCKED_SHARE_LIMIT = 0.01
# shares of the minimum, for the shape of the curve
CURVE_SHARES = (0.5, 0.75)
CURVE_OFFSETS = (-1, 0, 1, 2)
# the number itself and the larger ones that confirm it
CONFIRMING_OFFSETS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Length and seed of the runs; a second run loses one server after half of the time."""

    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """
    Results of one number of servers: `normal` operation, `server_loss` in the middle of the run,
    and the missed goals of each as text.
    """

    servers: int
    normal: SimulationResult
    server_loss: SimulationResult
    normal_misses: tuple[str, ...]
    loss_misses: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not (self.normal_misses or self.loss_misses)


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """
    `points` are sorted by number of servers, up to `limit`. `servers` is the smallest number that
    meets all goals, `without_spare` the smallest without the loss of a server; None when there is
    none. `reason` is why no number can be enough; empty when one could.
    """

    points: tuple[CurvePoint, ...]
    limit: int
    without_spare: int | None
    servers: int | None
    reason: str

    @property
    def shown(self) -> CurvePoint:
        """The point of the result, or the closest one."""
        wanted = self.servers or self.without_spare or self.limit
        return min(self.points, key=lambda point: abs(point.servers - wanted))


def find_server_count(
    fleet: FleetDemand,
    service: ServiceTime,
    trial: SimulationSettings,
    limit: int,
    also: tuple[int, ...] = (),
) -> CapacityPlan:
    """Find the number of servers, from 1 to `limit`; `also` are extra points of the curve."""
    runs = SimulationCache(fleet, service, trial)
    point = runs.point
    least = minimum_servers(fleet, service, limit)
    impossible, stalls_on_loss = (
        impossible_reason(fleet, service),
        loss_stall_reason(fleet, service),
    )
    without_spare = servers = None
    if not impossible:
        without_spare = smallest_count(
            lambda n: all(not point(m).normal_misses for m in confirming_counts(n, limit)),
            least,
            limit,
        )
    if without_spare and not stalls_on_loss:
        # one more than the minimum: a short run does not show a slight overload of the rest
        low = min(limit, max(without_spare, least + 1))
        servers = smallest_count(
            lambda n: all(point(m).holds for m in confirming_counts(n, limit)), low, limit
        )
    shape = [round(share * least) for share in CURVE_SHARES]
    around = [offset + (servers or without_spare or least) for offset in CURVE_OFFSETS]
    for number in (*shape, *around, *also):
        if 1 <= number <= limit:
            point(number)
    points = sorted(runs.points.values(), key=lambda each: each.servers)
    return CapacityPlan(tuple(points), limit, without_spare, servers, impossible or stalls_on_loss)


def confirming_counts(servers: int, limit: int) -> list[int]:
    """Return the numbers of servers that must meet the goals to confirm this one."""
    return [servers + more for more in CONFIRMING_OFFSETS if servers + more <= limit]


def minimum_servers(fleet: FleetDemand, service: ServiceTime, limit: int) -> int:
    """Return the number of servers below which requests are blocked for too long."""
    most = service.robots_within((1 + BLOCKED_SHARE_LIMIT) * fleet.period_s)
    return min(limit, math.ceil(fleet.robots / max(1, most)))


def smallest_count(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest number in [low, high] for which `holds` is true, None without one."""
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


class SimulationCache:
    """Run each simulation of one fleet once."""

    def __init__(
        self, fleet: FleetDemand, service: ServiceTime, trial: SimulationSettings
    ) -> None:
        self._fleet, self._service, self._trial = fleet, service, trial
        self.normal = cache(self._run)
        self.points: dict[int, CurvePoint] = {}

    def point(self, servers: int) -> CurvePoint:
        """Return the results of one number of servers."""
        if servers not in self.points:
            self.points[servers] = self._new_point(servers)
        return self.points[servers]

    def _new_point(self, servers: int) -> CurvePoint:
        normal, loss = self.normal(servers), self._run(servers, self._trial.seconds / 2)
        # the remaining servers must keep up; they cannot if all servers cannot
        can_keep_up = normal.blocked_share <= BLOCKED_SHARE_LIMIT
        rest = normal if not can_keep_up else self.normal(servers - 1) if servers > 1 else None
        return CurvePoint(
            servers, normal, loss, normal_misses(normal, self._fleet), loss_misses(loss, rest)
        )

    def _run(self, servers: int, server_loss_at_s: float | None = None) -> SimulationResult:
        trial = self._trial
        return simulate_fleet(
            self._fleet,
            self._service,
            servers,
            seconds=trial.seconds,
            seed=trial.seed,
            server_loss_at_s=server_loss_at_s,
        )


def normal_misses(normal: SimulationResult, fleet: FleetDemand) -> tuple[str, ...]:
    """Return the goals missed in normal operation, as text."""
    p99_ms, buffer_ms = normal.latency_ms(99), 1e3 * fleet.buffer_s
    found = []
    if normal.blocked_share > BLOCKED_SHARE_LIMIT:
        found.append(f'overload: {blocked_text(normal)}')
    if p99_ms is None or p99_ms > buffer_ms:
        took = 'no reply' if p99_ms is None else f'p99 latency {p99_ms:.0f} ms'
        found.append(f'{took}, but the buffer at a request is {buffer_ms:.0f} ms')
    if normal.stalled:
        found.append(stall_text(normal))
    return tuple(found)


def loss_misses(loss: SimulationResult, rest: SimulationResult | None) -> tuple[str, ...]:
    """Return the goals missed after the loss of a server, as text."""
    found = [f'after the loss of a server, {stall_text(loss)}'] if loss.stalled else []
    if rest is None:
        found.append('after the loss of a server, none is left')
    elif rest.blocked_share > BLOCKED_SHARE_LIMIT:
        found.append(f'after the loss of a server, overload: {blocked_text(rest)}')
    return tuple(found)


def blocked_text(result: SimulationResult) -> str:
    return f'robots wait before they can send for {result.blocked_share:.0%} of the time'


def stall_text(result: SimulationResult) -> str:
    verb = 'stalls' if result.stalled == 1 else 'stall'
    return f'{with_noun(result.stalled, "robot")} {verb}, {result.stalled_s:.1f} s in total'


def impossible_reason(fleet: FleetDemand, service: ServiceTime) -> str:
    """Return why no number of servers is enough; empty when one may be."""
    buffer_s, own_s = fleet.buffer_s, fleet.network_s + service.first_s
    own_share = fleet.rate_hz * service.first_s
    if buffer_s <= 0:
        return (
            f'a chunk plays for {fleet.playable_s:.4g} s, but the request period is '
            f'{fleet.period_s:.4g} s: raise --rate-hz or --chunk-rows'
        )
    if own_share > 1 + BLOCKED_SHARE_LIMIT:
        return (
            f'one robot alone needs {own_share:.0%} of a server: lower --rate-hz or make the '
            'policy faster'
        )
    if own_s > buffer_s:
        return (
            f'network and policy alone take {own_s:.4g} s, but the buffer at a request is '
            f'{buffer_s:.4g} s: raise request_threshold_s or the chunk length, or make network or '
            'policy faster'
        )
    return ''


def loss_stall_reason(fleet: FleetDemand, service: ServiceTime) -> str:
    """Return why robots stall after a loss with any number of servers; empty otherwise."""
    reply_s = fleet.failover_s + fleet.network_s + service.first_s
    if reply_s <= fleet.buffer_s:
        return ''
    return (
        f'after the loss of a server, its robots wait {reply_s:.4g} s for a reply, '
        f'{fleet.failover_s:.4g} s of it until the loss is detected, but the buffer at a request '
        f'is {fleet.buffer_s:.4g} s: detect it sooner or raise request_threshold_s or chunk length'
    )

# SPDX-License-Identifier: Apache-2.0
"""
The request load of a fleet, the service time of a policy server, the number of servers by a closed
formula, and the result of a simulation. Pure.

The formula inverts the rule of `admission: auto`: it computes the number of robots per server, and
from that the number of servers. A robot stays with one server, so that robots are counted whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
import math

from lerobot_serve.parameters import ParameterError

ROUNDING = 1e-9
SPARE = 1


@dataclass(frozen=True, slots=True)
class FleetDemand:
    """
    A fleet of equal robots.

    rate_hz            request rate of each robot
    network_s          network round trip; each direction takes half of it
    chunk_s            duration of a chunk
    max_age_s          largest age of an action, counted from its observation
    failover_s         time from the loss of a server to the next request of its robots
    request_timeout_s  time limit of a request; 0 for robots that send at their rate without
                       waiting for replies
    jitter             largest relative deviation of the time between two requests
    """

    robots: int
    rate_hz: float
    network_s: float
    chunk_s: float
    max_age_s: float
    failover_s: float
    request_timeout_s: float
    jitter: float = 0.1

    @property
    def period_s(self) -> float:
        """Time between two requests of a robot."""
        return 1 / self.rate_hz

    @property
    def playable_s(self) -> float:
        """Time after its observation for which a chunk can be played."""
        return min(self.chunk_s, self.max_age_s)

    @property
    def buffer_s(self) -> float:
        """Queued motion when a request is due (request_threshold_s); a stall at 0 or less."""
        return self.playable_s - self.period_s


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """
    Service time of a batch of up to `batch` requests: `first_s` for the first request, `more_s`
    for each further one. An incomplete batch waits up to `window_s` for further requests. Raises
    ParameterError.
    """

    first_s: float
    more_s: float = 0.0
    batch: int = 1
    window_s: float = 0.0

    def __post_init__(self) -> None:
        if self.more_s > self.first_s:
            raise ParameterError(
                f'--per-more-ms must be in [0, --inference-ms ({1e3 * self.first_s:g})], got '
                f'{1e3 * self.more_s:g}'
            )

    def batch_time_s(self, requests: int) -> float:
        """Return the service time of a batch of `requests`."""
        return self.first_s + (requests - 1) * self.more_s

    def request_time_s(self, robots: int) -> float:
        """Return the service time per request when all `robots` wait."""
        together = min(self.batch, max(1, robots))
        return self.batch_time_s(together) / together

    def time_at_once_s(self, robots: int) -> float:
        """Return the time until all `robots` are answered that send at once."""
        full, rest = divmod(robots, self.batch)
        return full * self.batch_time_s(self.batch) + (self.batch_time_s(rest) if rest else 0.0)

    def robots_at_once(self, budget_s: float) -> int:
        """Return the number of robots that may send at once, with a reply within `budget_s`."""
        most = self.batch * (1 + whole_number(budget_s / self.batch_time_s(self.batch)))
        return bisect_right(range(1, most + 1), budget_s + ROUNDING, key=self.time_at_once_s)

    def robots_within(self, budget_s: float) -> int:
        """
        Return the number of robots that a server can answer once each within `budget_s`, on
        average: where batches are full, a batch may go on beyond it.
        """
        robots = whole_number(budget_s / self.request_time_s(self.batch))
        if robots >= self.batch or budget_s < self.first_s:
            return robots if robots >= self.batch else 0
        # all robots fit into one batch
        return 1 + whole_number((budget_s - self.first_s) / self.more_s)


def whole_number(number: float) -> int:
    """Return the number rounded down, at least 0; corrects rounding errors (0.8 / 0.1 is 8)."""
    return max(0, math.floor(number + ROUNDING))


@dataclass(frozen=True, slots=True)
class FormulaResult:
    """
    busy_share       largest busy share of a server
    by_load          robots per server at that busy share
    by_delay         robots per server at which, if all send at once, the last reply arrives before
                     half of the playable time has passed
    per_server       the smaller of the two, at least 1
    request_time_s           service time per request with that number of robots
    work             load of the fleet in servers that are 100 % busy
    minimum_servers  smallest number at which no server is more than 100 % busy; None when one
                     robot alone exceeds a server
    without_spare    number of servers
    servers          number of servers including one spare
    """

    busy_share: float
    by_load: int
    by_delay: int
    per_server: int
    request_time_s: float
    work: float
    minimum_servers: int | None
    without_spare: int
    servers: int


def apply_formula(fleet: FleetDemand, service: ServiceTime, busy_share: float) -> FormulaResult:
    """Return the number of servers with all terms of the formula."""
    by_load = service.robots_within(busy_share * fleet.period_s)
    by_delay = service.robots_at_once(fleet.playable_s / 2 - fleet.network_s)
    most = service.robots_within(fleet.period_s)
    per_server = max(1, min(by_load, by_delay))
    request_time_s = service.request_time_s(per_server)
    without_spare = math.ceil(fleet.robots / per_server)
    return FormulaResult(
        busy_share=busy_share,
        by_load=by_load,
        by_delay=by_delay,
        per_server=per_server,
        request_time_s=request_time_s,
        work=fleet.robots * fleet.rate_hz * request_time_s,
        minimum_servers=math.ceil(fleet.robots / most) if most else None,
        without_spare=without_spare,
        servers=without_spare + SPARE,
    )


def formula_terms(
    found: FormulaResult, fleet: FleetDemand, service: ServiceTime
) -> list[tuple[str, str]]:
    """Return the name and the calculation of each term."""
    each_ms, together = 1e3 * found.request_time_s, min(service.batch, found.per_server)
    batch = f' ({1e3 * service.batch_time_s(together):g} ms for a batch of {together})'
    minimum = found.minimum_servers
    least = 'no number is enough' if minimum is None else f'at least {minimum}'
    by_load, by_delay = with_noun(found.by_load, 'robot'), with_noun(found.by_delay, 'robot')
    return [
        ('request', f'{each_ms:.4g} ms of server time{batch if together > 1 else ""}'),
        (
            'fleet',
            f'{with_noun(fleet.robots, "robot")} x {fleet.rate_hz:.4g} Hz x {each_ms:.4g} ms = '
            f'{found.work:.2f} servers at 100% load; with whole robots {least}',
        ),
        ('load', f'{by_load} per server, at most {found.busy_share:.0%} busy'),
        (
            'latency',
            f'{by_delay} per server: if all send at once, the last reply arrives before half of '
            f'{fleet.playable_s:.4g} s is played',
        ),
        (
            'servers',
            f'{fleet.robots} / {found.per_server} = {found.without_spare}, plus {SPARE} spare: '
            f'{found.servers}',
        ),
    ]


def with_noun(count: int, what: str) -> str:
    """Return a count with its noun."""
    return f'{count} {what}' + ('' if count == 1 else 's')


@dataclass(frozen=True, slots=True)
class ServerShare:
    """One server: its robots at the end, chunks, busy share and blocked share of its robots."""

    robots: int
    chunks: int
    busy_share: float
    blocked_share: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """
    Counts of one simulation.

    seconds      virtual time in which robots send requests
    requests     requests sent; each ends answered, superseded or lost
    answered     requests with a chunk in time
    superseded   requests replaced by a newer one of the same robot
    lost         by reason: server_lost, or late_chunk (after the timeout of the request)
    latencies_s  times from observation to chunk of answered requests, sorted
    stalled      number of robots that ran out of actions
    stalled_s    total time without actions
    servers      the share of each server
    """

    seconds: float
    requests: int
    answered: int
    superseded: int
    lost: Counter[str]
    latencies_s: tuple[float, ...]
    stalled: int
    stalled_s: float
    servers: tuple[ServerShare, ...]

    def latency_ms(self, percent: float) -> float | None:
        """Return a percentile of the latency, by nearest rank; None without a chunk."""
        if not self.latencies_s:
            return None
        rank = math.ceil(percent / 100 * len(self.latencies_s))
        return 1e3 * self.latencies_s[max(0, rank - 1)]

    @property
    def chunks(self) -> int:
        """Number of chunks, including late ones."""
        return self.answered + self.lost['late_chunk']

    @property
    def busy_share(self) -> float:
        """Mean busy share of all servers."""
        return sum(share.busy_share for share in self.servers) / len(self.servers)

    @property
    def blocked_share(self) -> float:
        """
        Largest blocked share of all servers: the share of time in which a request was due while
        the previous one was in flight.
        """
        return max(share.blocked_share for share in self.servers)

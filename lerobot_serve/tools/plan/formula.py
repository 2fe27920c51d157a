# SPDX-License-Identifier: Apache-2.0
"""
Estimate the number of servers of a fleet with a closed formula. Pure.

The formula inverts the rule of `admission: auto`: it computes the number of robots per server, and
from that the number of servers. A robot stays with one server, so that robots are counted whole.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime

SPARE = 1


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

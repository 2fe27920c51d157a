# SPDX-License-Identifier: Apache-2.0
"""
How many servers a fleet needs, by a formula that fits on the back of an envelope. Pure.

It is the rule by which a policy server with `admission: auto` admits robots, turned around: how
many robots one server can take, hence how many servers. A robot stays with one server, so robots
are counted whole.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime

SPARE = 1


@dataclass(frozen=True, slots=True)
class FormulaResult:
    """
    busy_share  how busy a server may be
    by_load     robots that a server can take and not be busier
    by_delay    robots of which the last still has its answer before half of what a chunk lasts,
                when all of a server's ask at once
    per_server  the smaller of the two, but at least one
    each_s      how long one request takes of a server with so many robots
    work        how many servers' whole time the fleet asks for
    at_least    servers below which one of them is asked for more than all of its time; None when
                one robot alone asks for more
    without_spare, servers   how many servers that makes, and with the spare for one that dies
    """

    busy_share: float
    by_load: int
    by_delay: int
    per_server: int
    each_s: float
    work: float
    at_least: int | None
    without_spare: int
    servers: int


def apply_formula(fleet: FleetDemand, service: ServiceTime, busy_share: float) -> FormulaResult:
    """Return the number of servers with all its terms."""
    by_load = service.robots_within(busy_share * fleet.period_s)
    by_delay = service.robots_within(fleet.playable_s / 2 - fleet.network_s)
    most = service.robots_within(fleet.period_s)
    per_server = max(1, min(by_load, by_delay))
    each_s = service.each_s(per_server)
    without_spare = math.ceil(fleet.robots / per_server)
    return FormulaResult(
        busy_share=busy_share,
        by_load=by_load,
        by_delay=by_delay,
        per_server=per_server,
        each_s=each_s,
        work=fleet.robots * fleet.rate_hz * each_s,
        at_least=math.ceil(fleet.robots / most) if most else None,
        without_spare=without_spare,
        servers=without_spare + SPARE,
    )


def formula_terms(
    found: FormulaResult, fleet: FleetDemand, service: ServiceTime
) -> list[tuple[str, str]]:
    """Return each term as its name, and how it comes about."""
    each_ms, together = 1e3 * found.each_s, min(service.batch, found.per_server)
    batch = f' ({1e3 * service.together_s(together):g} ms for a batch of {together})'
    least = 'no number is enough' if found.at_least is None else f'at least {found.at_least}'
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

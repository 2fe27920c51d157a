# SPDX-License-Identifier: Apache-2.0
"""The report of a plan. Pure functions; any thread."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lerobot_serve.tools.output.report import Facts, Part, Report, Table
from lerobot_serve.tools.plan.demand import (
    FleetDemand,
    formula_terms,
    FormulaResult,
    ServiceTime,
    SimulationResult,
    with_noun,
)
from lerobot_serve.tools.plan.search import CapacityPlan, CurvePoint

BAR = 24
HEAD = ('servers', 'busy', 'p50 ms', 'p99 ms', 'stalled', 'one lost', '')


def plan_report(
    fleet: FleetDemand, service: ServiceTime, found: FormulaResult, plan: CapacityPlan
) -> Report:
    """Return the report; `servers` of its data is the result, null without one."""
    data = {
        'servers': plan.servers,
        'servers_without_spare': plan.without_spare,
        'limit': plan.limit,
        'reason': no_result_reason(plan),
        'fleet': asdict(fleet) | {'buffer_s': fleet.buffer_s, 'playable_s': fleet.playable_s},
        'service': asdict(service),
        'formula': asdict(found),
        'curve': [point_json(point) for point in plan.points],
    }
    parts = [
        *fleet_lines(fleet),
        '',
        'formula',
        Facts(formula_terms(found, fleet, service), width=9),
        '',
        *curve_parts(plan, fleet),
        '',
        *server_parts(plan.shown),
        '',
        *result_lines(plan, found),
    ]
    return Report(data, parts, 1 if plan.servers is None else 0)


def point_json(point: CurvePoint) -> dict[str, Any]:
    return {
        'servers': point.servers,
        'is_enough': point.holds,
        'missed_goals': missed_goals(point),
        'normal': result_json(point.normal),
        'server_loss': result_json(point.server_loss),
    }


def result_json(result: SimulationResult) -> dict[str, Any]:
    return {
        'requests': result.requests,
        'answered': result.answered,
        'superseded': result.superseded,
        'lost': dict(result.lost),
        'latency_p50_ms': result.latency_ms(50),
        'latency_p99_ms': result.latency_ms(99),
        'busy_share': result.busy_share,
        'blocked_share': result.blocked_share,
        'stalled_robots': result.stalled,
        'stalled_s': result.stalled_s,
        'servers': [asdict(share) for share in result.servers],
    }


def fleet_lines(fleet: FleetDemand) -> list[str]:
    """Return the lines with the demand of the fleet."""
    return [
        f'{with_noun(fleet.robots, "robot")}, one request every {fleet.period_s:.4g} s each; '
        f'a chunk plays for {fleet.playable_s:.4g} s',
        f'buffer at each request: {fleet.buffer_s:.4g} s (request_threshold_s '
        f'{max(0.0, fleet.buffer_s):.4g})',
    ]


def curve_parts(plan: CapacityPlan, fleet: FleetDemand) -> list[Part]:
    """Return a table with one row for each number of servers, with p99 as a bar."""
    seconds, buffer_ms = plan.points[0].normal.seconds, 1e3 * fleet.buffer_s
    rows = []
    for point in plan.points:
        normal, p99_ms = point.normal, point.normal.latency_ms(99)
        rows.append(
            (
                str(point.servers),
                f'{normal.busy_share:.0%}',
                as_ms(normal.latency_ms(50)),
                as_ms(p99_ms),
                f'{normal.stalled_s:.1f} s',
                f'{point.server_loss.stalled_s:.1f} s',
                f'|{bar(p99_ms, buffer_ms)}| {point_label(point)}',
            )
        )
    return [
        f'simulation of {seconds:g} s, then with the loss of one server; a full bar is '
        f'{max(0.0, buffer_ms):.0f} ms',
        Table(HEAD, rows, right=range(6), least_widths=[8] * 6),
    ]


def as_ms(value_ms: float | None) -> str:
    return 'none' if value_ms is None else f'{value_ms:.0f}'


def bar(value_ms: float | None, full_ms: float) -> str:
    """Return a bar of BAR characters; its end is `>` when the value exceeds `full_ms`."""
    if value_ms is None or value_ms > full_ms:
        return '#' * (BAR - 1) + '>'
    return ('#' * max(1, round(BAR * value_ms / full_ms))).ljust(BAR)


def point_label(point: CurvePoint) -> str:
    if point.holds:
        return 'enough'
    return 'too few' if point.normal_misses else 'no spare'


def server_parts(point: CurvePoint) -> list[Part]:
    """Return the requests, and the busiest and the idlest server."""
    shares = sorted(point.normal.servers, key=lambda share: share.busy_share)
    normal = point.normal
    ends = [f'{normal.answered} answered', f'{normal.superseded} superseded']
    ends += [f'{count} {name}' for name, count in normal.lost.items()]
    rows = [
        (
            name,
            f'{share.busy_share:.0%} busy, {share.chunks} chunks, '
            f'{with_noun(share.robots, "robot")}',
        )
        for name, share in (('busiest', shares[-1]), ('idlest', shares[0]))
    ]
    return [
        f'with {with_noun(point.servers, "server")}: {normal.requests} requests, '
        f'{", ".join(ends)}',
        Facts(rows),
    ]


def result_lines(plan: CapacityPlan, found: FormulaResult) -> list[str]:
    """Return the lines with the result and the goals that one server less misses."""
    if plan.servers is None:
        return [
            f'no number of servers is enough: {no_result_reason(plan)}',
            f'the formula ({found.servers}) assumes that buffers outlast the failover after the '
            'loss of a server',
        ]
    lines = [
        f'{with_noun(plan.servers, "server")}, including one spare',
        formula_comparison(plan, found),
        f'buy the larger number: {max(plan.servers, found.servers)}',
    ]
    for point in plan.points:
        if point.servers == plan.servers - 1:
            lines += [f'{point.servers} {verb_be(point.servers)} not enough:']
            lines += [f'  {miss}' for miss in missed_goals(point)]
    return lines


def formula_comparison(plan: CapacityPlan, found: FormulaResult) -> str:
    """Return the difference between simulation and formula, with its reason."""
    if plan.servers is None or found.servers <= plan.servers:
        return f'the formula gives {found.servers}: it ignores that requests coincide'
    return (
        f'the formula gives {found.servers}: it keeps {1 - found.busy_share:.0%} of each server '
        'idle as headroom'
    )


def missed_goals(point: CurvePoint) -> list[str]:
    return [*point.normal_misses, *point.loss_misses]


def verb_be(count: int) -> str:
    return 'is' if count == 1 else 'are'


def no_result_reason(plan: CapacityPlan) -> str:
    """Return why no number of servers is enough; empty when one is."""
    if plan.servers is not None:
        return ''
    if not plan.reason:
        (last,) = [point for point in plan.points if point.servers == plan.limit]
        return f'not even {plan.limit}: {"; ".join(missed_goals(last))}'
    if plan.without_spare:
        enough = f'{with_noun(plan.without_spare, "server")} {verb_be(plan.without_spare)} enough'
        return f'{enough} without a spare, but {plan.reason}'
    return plan.reason

# SPDX-License-Identifier: Apache-2.0
"""The report of the plan of many sites. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lerobot_serve.router.storage.writer import WAITING_LIMIT
from lerobot_serve.tools.output.report import Facts, Part, Report, Table
from lerobot_serve.tools.plan.demand import with_noun
from lerobot_serve.tools.plan.report import as_ms, fleet_lines, result_json
from lerobot_serve.tools.plan.sites_costs import CORE_SHARE
from lerobot_serve.tools.plan.sites_plan import Growth, GrowthPoint, SitesPlan
from lerobot_serve.tools.plan.sites_search import SitePlan
from lerobot_serve.tools.plan.sites_simulation import Lost, SiteResult

HEAD = ('', 'p50 ms', 'p99 ms', 'stalled', 'lost')
GROWTH_HEAD = ('robots', 'times', 'router', 'server', 'store', 'p99 ms', 'stalled')


def sites_report(found: SitesPlan) -> Report:
    """Return the report."""
    data = {
        'is_enough': found.is_enough,
        'sites': found.sites,
        'routers': found.routers,
        'servers': found.servers,
        'router_memory_mb': found.router_memory_mb,
        'store_share': found.store_share,
        'fleet': asdict(found.model.fleet),
        'service': asdict(found.model.service),
        'costs': asdict(found.model.costs),
        'sizes': [site_json(plan) for plan in found.plans],
        'growth': growth_json(found.growth),
    }
    parts: list[Part] = [*fleet_lines(found.model.fleet)]
    for plan in found.plans:
        parts += ['', *site_parts(plan, found.model.costs.episode_s)]
    parts += ['', *sum_lines(found), '', *growth_parts(found)]
    return Report(data, parts, 0 if found.is_enough else 1)


def site_json(plan: SitePlan) -> dict[str, Any]:
    """Return the plan of the sites of one size."""
    return {
        'sites': plan.count,
        'robots': plan.robots,
        **asdict(plan.shape),
        'router_memory_mb': plan.router_memory_mb,
        'store_share': plan.store_share,
        'missed_goals': list(plan.misses),
        'normal': run_json(plan.normal),
        **{f'{loss.value}_loss': run_json(result) for loss, result in plan.losses.items()},
    }


def run_json(result: SiteResult) -> dict[str, Any]:
    """Return one run."""
    return result_json(result.requests) | {
        'routers': [asdict(share) for share in result.routers],
        'store': asdict(result.store),
    }


def growth_json(growth: Growth) -> dict[str, Any]:
    """Return what breaks first; `first` is null where nothing breaks."""
    return {
        'first': point_json(growth.first) if growth.first else None,
        'points': [point_json(point) for point in growth.points],
        'full_at_robots': {resource.name.lower(): robots for resource, robots in growth.limits},
    }


def point_json(point: GrowthPoint) -> dict[str, Any]:
    """Return one step of a site that grows."""
    return {
        'robots': point.robots,
        'breaks': point.breaks.name.lower() if point.breaks else None,
        'missed_goals': list(point.misses),
        'router_share': point.result.router_share,
        'server_share': point.result.server_share,
        'store_share': point.store_share,
        'latency_p99_ms': point.result.requests.latency_ms(99),
        'stalled_s': point.result.requests.stalled_s,
    }


def site_parts(plan: SitePlan, episode_s: float) -> list[Part]:
    """Return the runs of the sites of one size, then what each needs."""
    placements_hz = plan.model.costs.placements_hz(plan.robots)
    rows = [('normal operation', *run_cells(plan.normal))]
    rows += [
        (f'loss of {article(loss)} {loss.value}', *run_cells(result))
        for loss, result in plan.losses.items()
    ]
    return [
        f'{with_noun(plan.count, "site")} of {with_noun(plan.robots, "robot")}; an episode takes '
        f'{episode_s:g} s, so {placements_hz:.3g} placements per second',
        f'simulation of {plan.model.trial.seconds:g} s with {shape_text(plan)}, then with losses',
        Table(HEAD, rows, 2, right=range(1, 5), least_widths=(16, *[8] * 4)),
        store_loss_line(plan),
        *need_parts(plan),
    ]


def article(loss: Lost) -> str:
    return 'the' if loss is Lost.STORE else 'a'


def run_cells(result: SiteResult) -> tuple[str, ...]:
    requests = result.requests
    lost = requests.lost['server_lost'] + requests.lost['router_lost']
    return (
        as_ms(requests.latency_ms(50)),
        as_ms(requests.latency_ms(99)),
        f'{requests.stalled_s:.1f} s',
        str(lost),
    )


def shape_text(plan: SitePlan) -> str:
    return (
        f'{with_noun(plan.shape.routers, "router")} and {with_noun(plan.shape.servers, "server")}'
    )


def store_loss_line(plan: SitePlan) -> str:
    """Return the line on the placements of the run without the store."""
    store = plan.losses[Lost.STORE].store
    hours = WAITING_LIMIT / plan.model.costs.placements_hz(plan.robots) / 3600
    return (
        f'  store away for {plan.model.trial.seconds / 4:g} s: {store.most_waiting} placements '
        f'wait, written {store.caught_up_s or 0:.2g} s after its return; room for {hours:.3g} h'
    )


def need_parts(plan: SitePlan) -> list[Part]:
    """Return what each of these sites needs."""
    normal, costs = plan.normal, plan.model.costs
    fits = costs.router_robots(plan.model.fleet, CORE_SHARE)
    rows = [
        (
            'routers',
            f'{plan.shape.routers}, including one spare; {normal.router_share:.0%} of a core and '
            f'{plan.router_memory_mb:.0f} MB each; one carries {fits} robots at {CORE_SHARE:.0%}',
        ),
        (
            'servers',
            f'{plan.shape.servers} for a slot, including one spare; up to '
            f'{normal.server_share:.0%} busy',
        ),
        ('store', f'{plan.store_share:.1%} of a core'),
    ]
    head = 'each of them ' + ('needs' if not plan.misses else 'misses its goals with')
    return [head, Facts(rows), *(f'  {miss}' for miss in plan.misses)]


def sum_lines(found: SitesPlan) -> list[str]:
    """Return the lines with the sums of all sites."""
    if found.sites == 1:
        return [f'{with_noun(found.routers, "router")}, {with_noun(found.servers, "server")}']
    placements_hz = found.model.costs.placements_hz(found.model.fleet.robots)
    return [
        f'all {found.sites} sites: {with_noun(found.routers, "router")} with '
        f'{found.router_memory_mb / 1e3:.3g} GB, {with_noun(found.servers, "server")} for a slot',
        f'one store for all: {found.store_share:.0%} of a core, {placements_hz:.3g} placements '
        'per second',
    ]


def growth_parts(found: SitesPlan) -> list[Part]:
    """Return the steps of a site that grows, and what breaks first."""
    growth, plan = found.growth, found.plans[0]
    rows = [point_cells(point) for point in growth.points]
    return [
        f'a site that grows, with {shape_text(plan)}; busy shares',
        Table(GROWTH_HEAD, rows, right=range(7), least_widths=[7] * 7),
        '',
        *first_break_lines(growth),
        *limit_lines(growth),
    ]


def point_cells(point: GrowthPoint) -> tuple[str, ...]:
    result = point.result
    return (
        str(point.robots),
        f'{point.factor:.3g}',
        f'{result.router_share:.0%}',
        f'{result.server_share:.0%}',
        f'{point.store_share:.0%}',
        as_ms(result.requests.latency_ms(99)),
        f'{result.requests.stalled_s:.1f} s',
    )


def first_break_lines(growth: Growth) -> list[str]:
    """Return what breaks first, and the goal that is missed."""
    first = growth.first
    if first is None or first.breaks is None:
        return ['nothing breaks in these steps']
    return [
        f'first to break: {first.breaks.value}, at {with_noun(first.robots, "robot")} of a site '
        f'({first.factor:.2f} times as many)',
        f'  {first.misses[0]}',
    ]


def limit_lines(growth: Growth) -> Iterator[str]:
    """Yield the number of robots at which each resource is full."""
    yield '100% busy, as computed, at so many robots of a site:'
    yield from (f'  {robots:>7}  {resource.value}' for resource, robots in growth.limits)

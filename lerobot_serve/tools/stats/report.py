# SPDX-License-Identifier: Apache-2.0
"""
The report of aggregated traces, and the same as one HTML file without links. Reads the time zone;
any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lerobot_serve.tools.output.line_charts import line_chart, Points
from lerobot_serve.tools.output.report import as_html, Facts, html_page, Part, Report
from lerobot_serve.tools.output.text import printable, sources_line
from lerobot_serve.tools.stats.aggregates import (
    DURATIONS,
    ERROR,
    GroupKey,
    GroupStats,
    Mergeable,
    Proportion,
    QuantileSketch,
    TimeSeries,
)
from lerobot_serve.tools.stats.collect import TraceStats

NAME_WIDTH = 16
# role nearest to the decision first
ROLES = ('router', 'edge', 'server')
Series = TypeVar('Series')
Value = TypeVar('Value', bound=Mergeable)


def stats_report(stats: TraceStats, paths: Sequence[str] = ()) -> Report:
    """Return the report of the traces of `paths`; its data lack the timelines."""
    data = {
        'paths': paths,
        'runs': stats.runs,
        'lines': stats.lines,
        'bytes': stats.size_bytes,
        'damaged_lines': stats.damaged,
        'quantile_error': ERROR,
        'slots': [key._asdict() | _tally_json(stats.tallies[key]) for key in sorted_keys(stats)],
        'divergence': {pair: each.spread() for pair, each in sorted(stats.divergences.items())},
        'policies': dict(stats.policies),
        'canary': dict(stats.canary),
        'incidents': dict(stats.incidents),
    }
    head = f'{stats.runs} runs, {stats.lines} lines, {stats.size_bytes / 1e6:.1f} MB'
    damaged = f', {stats.damaged} of them damaged' if stats.damaged else ''
    return Report(data, [sources_line(paths), head + damaged, *stats_parts(stats)])


def stats_parts(stats: TraceStats) -> list[Part]:
    """Return the figures of each slot, of shadows and of decisions."""
    parts: list[Part] = []
    for key in sorted_keys(stats):
        figures = Facts(figures_of(stats.tallies[key]), width=NAME_WIDTH)
        parts += ['', group_title(key), figures]
    for pair, sketch in sorted(stats.divergences.items()):
        spread = Facts([('divergence', spread_text(sketch))], width=NAME_WIDTH)
        parts += ['', f'shadow {pair}', spread]
    counters = {'policies': stats.policies, 'canary': stats.canary, 'incidents': stats.incidents}
    for name, counter in counters.items():
        if counter:
            parts += ['', f'{name}: {counts_text(counter)}']
    return [*parts, '', f'quantiles are within {ERROR:.0%} of the exact ones']


def sorted_keys(stats: TraceStats) -> list[GroupKey]:
    """Return the keys of the tallies in the order in which they are shown."""
    return sorted(stats.tallies)


def group_title(key: GroupKey) -> str:
    """Return role, slot and policy of a tally as text."""
    slot = f'slot {printable(key.slot)}' if key.slot else 'no slot'
    return f'{printable(key.role)}, {slot}, {printable(key.policy) or "no policy"}'


def figures_of(tally: GroupStats) -> list[tuple[str, str]]:
    """Return the figures of a tally as names and values."""
    good, ended = tally.outcomes['success'], sum(tally.outcomes.values())
    # episodes with a person have a line of their own
    alone = ' and without a person' if tally.helped else ''
    share = f', {good} of {ended} with an outcome{alone} succeeded' if ended else ''
    facts = [('episodes', f'{tally.episodes}{share}')]
    if ended:
        facts.append(('outcomes', counts_text(tally.outcomes)))
    if tally.requests:
        facts.append(('requests', f'{tally.requests}: {counts_text(tally.statuses)}'))
    facts += [
        (name.removesuffix('_ms') + ' [ms]', spread_text(tally.durations[name]))
        for name in DURATIONS
        if tally.durations[name].count
    ]
    fallbacks = sum(tally.fallbacks.values())
    if tally.actions or fallbacks or tally.by_person:
        facts.append(('actions', f'{tally.actions} executed, {tally.trips} changed by the cage'))
        facts.append(('oldest action', f'{tally.oldest_age_s:.3f} s'))
        facts.append(
            ('fallbacks', f'{fallbacks}{": " * bool(fallbacks)}{counts_text(tally.fallbacks)}')
        )
        if tally.by_person:
            facts.append(('by a person', _person_text(tally)))
        facts.append(('stalls', str(tally.stalls)))
    if tally.drops:
        facts.append(('drops', counts_text(tally.drops)))
    return facts


def _person_text(tally: GroupStats) -> str:
    """Return what a person did; the outcomes are in addition to those of the policy alone."""
    ended = f'; outcomes {counts_text(tally.helped)}' if tally.helped else ''
    return f'{tally.by_person} commands{ended}'


def counts_text(counter: Counter[str]) -> str:
    """Return names with their counts, most frequent first."""
    return ', '.join(f'{printable(name) or "-"} {n}' for name, n in counter.most_common())


def spread_text(sketch: QuantileSketch) -> str:
    """Return the quantiles as text."""
    return '  '.join(
        f'{name} {value:.4g}' for name, value in sketch.spread().items() if name != 'n'
    )


def _tally_json(tally: GroupStats) -> dict[str, Any]:
    return {
        'episodes': tally.episodes,
        'outcomes': dict(tally.outcomes),
        'helped': dict(tally.helped),
        'requests': tally.requests,
        'statuses': dict(tally.statuses),
        **{name: tally.durations[name].spread() for name in DURATIONS},
        'actions': tally.actions,
        'trips': tally.trips,
        'by_person': tally.by_person,
        'fallbacks': dict(tally.fallbacks),
        'stalls': tally.stalls,
        'oldest_age_s': tally.oldest_age_s,
        'drops': dict(tally.drops),
    }


def html_report(stats: TraceStats) -> str:
    """Return the whole file."""
    charts = [
        line_chart('Success rate of ended episodes, by slot [%]', success(stats), high=100.0),
        line_chart('Share of new episodes, by slot [%]', split(stats), high=100.0),
        line_chart('Round trip, by slot [ms]', latency(stats)),
        line_chart('Divergence of the shadow, median', divergence(stats)),
    ]
    head = f'{stats.runs} runs, {stats.lines} lines, {stats.damaged} of them damaged'
    return html_page(
        'Traces of lerobot_serve',
        f'<h1>Traces</h1><p>{head}. Quantiles are within {ERROR:.0%} of the exact ones. '
        f'Times are local.</p>{"".join(charts)}{as_html(stats_parts(stats))}',
    )


def success(stats: TraceStats) -> dict[str, Points]:
    """
    Return the success rate of ended episodes [%], from edges if there are any: routers record the
    same outcomes, and do not know where a person commanded.
    """
    timeline = first_available(stats.success, ('edge', 'router'))
    if timeline is None:
        return {}
    return {
        slot_label(slot): [(time_s, 100 * each.part / each.of) for time_s, each in line]
        for slot, line in _lines(timeline).items()
    }


def split(stats: TraceStats) -> dict[str, Points]:
    """Return the share of new episodes of each slot [%]."""
    timeline = first_available(stats.begun)
    if timeline is None:
        return {}
    all_at: dict[float, int] = {}
    lines = _lines(timeline)
    for line in lines.values():
        for time_s, each in line:
            all_at[time_s] = all_at.get(time_s, 0) + each.of
    parts = {slot: dict(line) for slot, line in lines.items()}
    return {
        slot_label(slot): [
            (time_s, 100 * part.get(time_s, Proportion()).of / all_at[time_s])
            for time_s in sorted(all_at)
        ]
        for slot, part in parts.items()
    }


def latency(stats: TraceStats) -> dict[str, Points]:
    """Return median and p95 of the round trip, from the role nearest to the robots."""
    timeline = first_available(stats.latency, ('edge', 'router', 'server'))
    if timeline is None:
        return {}
    return {
        f'{slot_label(slot)} {name}': _quantiles(line, part)
        for slot, line in _lines(timeline).items()
        for name, part in (('p50', 0.5), ('p95', 0.95))
    }


def divergence(stats: TraceStats) -> dict[str, Points]:
    """Return the median divergence of a shadow from the executed actions."""
    return {pair: _quantiles(line, 0.5) for pair, line in _lines(stats.divergence).items()}


def first_available(
    timelines: Mapping[str, Series], roles: tuple[str, ...] = ROLES
) -> Series | None:
    """Return the series of the first role that has one."""
    return next((timelines[role] for role in roles if role in timelines), None)


def slot_label(slot: str) -> str:
    """Return a slot as text."""
    return f'slot {slot}' if slot else 'no slot'


def _lines(timeline: TimeSeries[Value]) -> dict[str, list[tuple[float, Value]]]:
    return {name: list(timeline.of(name)) for name in timeline.names()}


def _quantiles(line: list[tuple[float, QuantileSketch]], part: float) -> Points:
    return [(time_s, sketch.quantile(part) or 0.0) for time_s, sketch in line]

# SPDX-License-Identifier: Apache-2.0
"""The report of aggregated traces. Pure functions; any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lerobot_serve.tools.output.report import Facts, Part, Report
from lerobot_serve.tools.output.text import printable, sources_line
from lerobot_serve.tools.stats.collect import TraceStats
from lerobot_serve.tools.stats.group import DURATIONS, GroupKey, GroupStats
from lerobot_serve.tools.stats.quantile_sketch import ERROR, QuantileSketch

NAME_WIDTH = 16


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

# SPDX-License-Identifier: Apache-2.0
"""Sums of traces as one HTML file that needs nothing else. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TypeVar

from lerobot_serve.tools.output.line_charts import line_chart, Points
from lerobot_serve.tools.stats.collect import TraceStats
from lerobot_serve.tools.stats.quantile_sketch import ERROR
from lerobot_serve.tools.stats.report import figures_of, group_title, sorted_keys
from lerobot_serve.tools.stats.time_series import Proportion, TimeSeries

# who knows it best
ROLES = ('router', 'edge', 'server')
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem; color: #222; background: #fff }
table { border-collapse: collapse; margin-bottom: 1.5rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
td { overflow-wrap: anywhere; padding: .15rem .9rem .15rem 0; vertical-align: top }
figure { margin: 1.5rem 0 } figcaption { font-weight: 600 } figcaption span { font-weight: 400 }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: #555 }
svg .grid { stroke: #ddd } svg .mark { stroke: #c22; stroke-dasharray: 4 3 }
"""
SeriesOfRole = TypeVar('Found')


def html_report(stats: TraceStats) -> str:
    """Return the whole file."""
    charts = [
        line_chart('Success of the episodes that ended, by slot [%]', success(stats), high=100.0),
        line_chart('Share of the episodes that began, by slot [%]', split(stats), high=100.0),
        line_chart('Round trip, by slot [ms]', latency(stats)),
        line_chart('Divergence of the shadow, median', divergence(stats)),
    ]
    tables = [
        f'<h2>{escape(group_title(key))}</h2><table>{_rows(figures_of(stats.tallies[key]))}</table>'
        for key in sorted_keys(stats)
    ]
    head = f'{stats.runs} runs, {stats.lines} lines, {stats.damaged} of them damaged'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>Traces of lerobot_serve</title><style>{STYLE}</style></head><body>'
        f'<h1>Traces summed up</h1><p>{head}. Quantiles are within {ERROR:.0%} of the exact ones. '
        f'Times are UTC.</p>{"".join(charts)}{"".join(tables)}</body></html>\n'
    )


def success(stats: TraceStats) -> dict[str, Points]:
    """Return how many of the episodes that ended succeeded [%]."""
    return {
        slot_label(slot): [(time_s, 100 * each.part / each.of) for time_s, each in line]
        for slot, line in _lines(stats.success).items()
    }


def split(stats: TraceStats) -> dict[str, Points]:
    """Return what part of the episodes that began is each slot's [%]."""
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
    """Return median and p95 of the round trip, as who is nearest to the robots has it."""
    timeline = first_available(stats.latency, ('edge', 'router', 'server'))
    if timeline is None:
        return {}
    return {
        f'{slot_label(slot)} {name}': [(time_s, each.quantile(part)) for time_s, each in line]
        for slot, line in _lines(timeline).items()
        for name, part in (('p50', 0.5), ('p95', 0.95))
    }


def divergence(stats: TraceStats) -> dict[str, Points]:
    """Return the median of how far a shadow was from what was executed."""
    return {
        pair: [(time_s, each.quantile(0.5)) for time_s, each in line]
        for pair, line in _lines(stats.divergence).items()
    }


def first_available(
    timelines: Mapping[str, SeriesOfRole], roles: tuple[str, ...] = ROLES
) -> SeriesOfRole | None:
    """Return that of the first role that has one."""
    return next((timelines[role] for role in roles if role in timelines), None)


def slot_label(slot: str) -> str:
    """Return a slot for people."""
    return f'slot {slot}' if slot else 'no slot'


def _lines(timeline: TimeSeries) -> dict[str, list]:
    return {name: list(timeline.of(name)) for name in timeline.names()}


def _rows(facts: list[tuple[str, str]]) -> str:
    return ''.join(
        f'<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>' for name, value in facts
    )

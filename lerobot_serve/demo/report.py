# SPDX-License-Identifier: Apache-2.0
"""Renders a run of the demo as one self-contained HTML file. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any

from lerobot_serve.demo.arm_animation import arm_animation
from lerobot_serve.demo.process_specs import VERSIONS
from lerobot_serve.demo.scoreboard import Scoreboard, version_of
from lerobot_serve.demo.summary import as_text
from lerobot_serve.tools.output.line_charts import line_chart, Points, utc_time_of_day
from lerobot_serve.tools.stats.html_report import STYLE

# window of the success rate [episodes]
WINDOW = 20


def html_report(board: Scoreboard, figures: dict[str, Any]) -> str:
    """Return the whole file."""
    plot = partial(line_chart, marks=event_marks(board), span_s=span_s(board))
    pictures = [
        plot(
            f'Targets reached among the last {WINDOW} episodes [%]',
            success_rates(board),
            high=100.0,
        ),
        plot('Share of new episodes in slot b [%]', {'slot b': board.shares}, high=100.0),
        plot('Round trip [ms]', round_trips(board)),
        plot('v2 in shadow: distance from the executed actions [rad]', {'rms': board.divergences}),
    ]
    events = ''.join(
        f'<tr><td>{utc_time_of_day(m.time_s)}</td><td>{escape(m.text)}</td></tr>'
        for m in board.events
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>lerobot_serve demo</title><style>{STYLE}</style></head><body>'
        f'<h1>lerobot_serve demo</h1><pre>{escape(as_text(figures))}</pre>'
        f'<h2>The arm under each version</h2><figure>{arm_animations(board)}</figure>'
        f'{"".join(pictures)}<p>Times are UTC.</p><h2>Events</h2><table>{events}</table>'
        '</body></html>\n'
    )


def success_rates(board: Scoreboard) -> Mapping[str, Points]:
    """Return the success rate of each version over its last episodes [%]."""
    lines: dict[str, list[tuple[float, float]]] = {}
    last: dict[str, list[bool]] = {}
    for each in board.ended_episodes:
        name = version_of(each.policy) or 'unknown'
        window = last.setdefault(name, [])
        window.append(each.success)
        del window[:-WINDOW]
        lines.setdefault(name, []).append((each.time_s, 100 * sum(window) / len(window)))
    return lines


def round_trips(board: Scoreboard) -> dict[str, Points]:
    """Return the round trips of each version."""
    return {version_of(policy): line for policy, line in board.round_trips_ms.items() if policy}


def arm_animations(board: Scoreboard) -> str:
    """Return the animation of the arm under each version."""
    return arm_animation({version: board.longest_clip(version) for version in VERSIONS})


def event_marks(board: Scoreboard) -> list[tuple[float, str]]:
    """Return the marks of every plot: promotions, rollbacks, kills, other policies."""
    return [(event.time_s, event.mark) for event in board.events if event.mark]


def span_s(board: Scoreboard) -> tuple[float, float] | None:
    """Return the time range of every plot, None without data."""
    times = [time_s for line in (board.shares, board.divergences) for time_s, _ in line]
    times += [time_s for line in board.round_trips_ms.values() for time_s, _ in line]
    times += [episode.time_s for episode in board.ended_episodes]
    times += [event.time_s for event in board.events]
    return (min(times), max(times)) if times else None

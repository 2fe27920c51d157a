"""The run of a demo as one HTML file that needs nothing else. Pure functions; any thread."""

from __future__ import annotations

from html import escape
from typing import Any

from lerobot_serve.demo.scoreboard import Scoreboard, version_of
from lerobot_serve.demo.summary import describe
from lerobot_serve.trace.stats.charts import chart, Series
from lerobot_serve.trace.stats.page import STYLE

# success is the share among so many episodes of a version
WINDOW = 20


def report(board: Scoreboard, figures: dict[str, Any]) -> str:
    """Return the whole file."""
    marks = kill_mark(figures)
    pictures = [
        chart(f'Targets reached among the last {WINDOW} episodes [%]', success(board), high=100.0),
        chart('Share of new episodes that slot b gets [%]', {'slot b': board.shares}, high=100.0),
        chart('Round trip [ms]', trips(board), marks=marks),
        chart('v2 in shadow: how far from what was executed [rad]', {'rms': board.divergences}),
    ]
    news = ''.join(
        f'<tr><td>{m.time_s:.1f}</td><td>{escape(m.text)}</td></tr>' for m in board.moments
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>lerobot_serve demo</title><style>{STYLE}</style></head><body>'
        f'<h1>lerobot_serve demo</h1><pre>{escape(describe(figures))}</pre>'
        f'{"".join(pictures)}<h2>What happened</h2><table>{news}</table></body></html>\n'
    )


def success(board: Scoreboard) -> dict[str, Series]:
    """Return for each version the share of its last episodes that succeeded [%]."""
    lines: dict[str, list[tuple[float, float]]] = {}
    last: dict[str, list[bool]] = {}
    for each in board.ended:
        name = version_of(each.policy) or 'unknown'
        window = last.setdefault(name, [])
        window.append(each.success)
        del window[:-WINDOW]
        lines.setdefault(name, []).append((each.time_s, 100 * sum(window) / len(window)))
    return lines


def trips(board: Scoreboard) -> dict[str, Series]:
    """Return the round trips of each version."""
    return {version_of(policy): line for policy, line in board.trips_ms.items() if policy}


def kill_mark(figures: dict[str, Any]) -> dict[str, float]:
    """Return when a server was killed."""
    found = figures['acts'].get('kill')
    return {'server killed': found['at_s']} if found else {}

# SPDX-License-Identifier: Apache-2.0
"""
Renders a run of the demo as one self-contained HTML file: the acts in order with the commands and
what they printed, the arm under each version, and plots. Reads the time zone; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from lerobot_serve.demo.fleet_names import VERSIONS
from lerobot_serve.demo.results.arm_animation import arm_animation
from lerobot_serve.demo.results.run_records import RunRecords
from lerobot_serve.demo.results.scoreboard import DemoEvent, Scoreboard, version_of
from lerobot_serve.demo.results.summary import ACT_TEXT, as_text, DemoRun
from lerobot_serve.demo.tour.act_order import ACT_CLAIMS
from lerobot_serve.demo.tour.commands import TypedCommand
from lerobot_serve.tools.output.line_charts import line_chart, Points
from lerobot_serve.tools.output.report import html_page
from lerobot_serve.tools.output.text import format_local

# window of the success rate [episodes]
WINDOW = 20
COMMAND_STYLE = """
pre.command { padding: .6rem .8rem; border: 1px solid var(--line); border-radius: .4rem;
  overflow-x: auto; white-space: pre; overflow-wrap: normal; font-size: 12.5px }
pre.command b { color: var(--accent) }
h3 small { font-weight: 400; color: var(--weak) }
"""


def html_report(
    board: Scoreboard, run: DemoRun, records: RunRecords, figures: dict[str, Any]
) -> str:
    """Return the whole file."""
    story = ''.join(
        act_section(act, found, run.commands, board.events)
        for act, found in figures['acts'].items()
    )
    return html_page(
        'lerobot_serve demo',
        f'<h1>lerobot_serve demo</h1><pre>{escape(as_text(figures))}</pre>'
        f'{arm_section(board)}'
        f'<h2>The acts</h2>{story}<h2>Over time</h2>{plots(board, records)}'
        '<p>Times are local.</p>',
        COMMAND_STYLE,
    )


def arm_section(board: Scoreboard) -> str:
    """Return the arm under each version, nothing where no motion was recorded."""
    if not board.clips:
        return ''
    return f'<h2>The arm under each version</h2><figure>{arm_animations(board)}</figure>'


def act_section(
    act: str,
    found: dict[str, Any],
    commands: Iterable[TypedCommand],
    events: Iterable[DemoEvent],
) -> str:
    """Return one act: its claim, the result, then commands and events in time order."""
    mark = 'ok' if found['shown'] else 'FAILED'
    typed = [(each.time_s, command_block(each)) for each in commands if each.act == act]
    noted = [(each.time_s, event_block(each)) for each in events if each.act == act]
    blocks = ''.join(text for _, text in sorted(typed + noted, key=lambda each: each[0]))
    return (
        f'<section><h3>{escape(ACT_CLAIMS[act])} <small>{mark}: '
        f'{escape(ACT_TEXT[act](found))}</small></h3>{blocks}</section>'
    )


def command_block(command: TypedCommand) -> str:
    """Return a command and what it printed."""
    remark = f'# {escape(command.remark)}\n' if command.remark else ''
    lines = ''.join(f'\n{escape(line)}' for line in command.lines)
    return f'<pre class="command">{remark}<b>$ {escape(command.text)}</b>{lines}</pre>'


def event_block(event: DemoEvent) -> str:
    return f'<p>{format_local(event.time_s, to="seconds")} {escape(event.text)}</p>'


def plots(board: Scoreboard, records: RunRecords) -> str:
    """Return the plots, all over the same period and with the same marks."""
    plot = partial(line_chart, marks=event_marks(board), span_s=span_s(board, records))
    return ''.join(
        (
            plot(
                f'Targets reached among the last {WINDOW} episodes [%]',
                success_rates(board),
                high=100.0,
            ),
            plot('Share of new episodes in slot b [%]', {'slot b': records.shares}, high=100.0),
            plot('Round trip [ms]', round_trips(records)),
            plot(
                'v2 in shadow: distance from the executed actions [rad]',
                {'rms': records.divergences},
            )
            if records.divergences
            else '',
        )
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


def round_trips(records: RunRecords) -> dict[str, Points]:
    """Return the round trips of each version."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for policy, line in records.round_trips_ms.items():
        lines.setdefault(version_of(policy), []).extend(line)
    return {version: sorted(lines[version]) for version in sorted(lines)}


def arm_animations(board: Scoreboard) -> str:
    """Return the animation of the arm under each version; the acts of learning record none."""
    return arm_animation({version: board.typical_clip(version) for version in VERSIONS})


def event_marks(board: Scoreboard) -> list[tuple[float, str]]:
    """Return the marks of every plot: steps, promotions, rollbacks, kills, drains, restores."""
    return [(event.time_s, event.mark) for event in board.events if event.mark]


def span_s(board: Scoreboard, records: RunRecords) -> tuple[float, float] | None:
    """Return the time range of every plot, None without data."""
    lines: Sequence[Points] = [records.divergences, *records.round_trips_ms.values()]
    times = [time_s for line in lines for time_s, _ in line]
    times += [episode.time_s for episode in board.ended_episodes]
    times += [event.time_s for event in board.events]
    return (min(times), max(times)) if times else None

# SPDX-License-Identifier: Apache-2.0
"""
Summarizes a run of the demo as JSON and as text, and renders it as one self-contained HTML file:
the acts in order with the commands and what they printed, the arm under each version, and plots.
Reads the time zone; any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

from lerobot_serve.demo.fleet_names import VERSIONS
from lerobot_serve.demo.results.arm_animation import arm_animation
from lerobot_serve.demo.results.run_records import longest_gaps_ms, RunRecords, with_gain
from lerobot_serve.demo.results.scoreboard import DemoEvent, named, Scoreboard, version_of
from lerobot_serve.demo.tour.act_order import ACT_CLAIMS
from lerobot_serve.demo.tour.link import ROS, TypedCommand, ZENOH
from lerobot_serve.telemetry.durations import summarize
from lerobot_serve.tools.output.line_charts import line_chart, Points
from lerobot_serve.tools.output.report import html_page
from lerobot_serve.tools.output.text import format_local

Figures = dict[str, Any]
LINK_TEXT = {ROS: 'ROS 2', ZENOH: 'Zenoh'}


@dataclass(slots=True)
class DemoRun:
    """A run of the demo: the figures of its acts, what was typed, and how it ended."""

    acts: dict[str, Figures] = field(default_factory=dict)
    commands: Sequence[TypedCommand] = ()
    exit_status: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ''


def summarize_run(board: Scoreboard, run: DemoRun, records: RunRecords, audit: Figures) -> Figures:
    """Return the figures; `ok` states whether each act proved its claim."""
    drops: Counter[str] = Counter()
    for robot in board.robots.values():
        drops.update({each.reason: each.count for each in robot.edge.dropped})
    acts = {name: dict(figures) for name, figures in run.acts.items()}
    if 'kill' in acts:
        acts['kill'] |= gaps_after_kill(acts['kill'], records)
    if 'learn' in acts:
        acts['learn'] = with_gain(acts['learn'], records.comparisons)
    shown = all(each['shown'] for each in acts.values())
    ages_ms = [1e3 * each.age_s for line in records.actions.values() for each in line]
    return {
        'ok': shown and not run.error and audit.get('violations') == 0,
        'error': run.error,
        'seconds': round(run.seconds, 1),
        'acts': acts,
        'commands': [
            {'act': each.act, 'command': each.text, 'status': each.status, 'output': each.lines}
            for each in run.commands
        ],
        'audit': audit,
        'episodes': {
            policy or 'unknown': {'ended': of, 'successes': good}
            for policy, (good, of) in named(board.successes()).items()
        },
        'robots': {
            name: {
                'executed': robot.edge.actions_executed,
                'chunks': robot.edge.chunks_accepted,
                'stalls': robot.edge.stalls,
                'cage_trips': robot.edge.cage_trips,
                'ticks': robot.edge.control_steps,
                'control_steps_missed': robot.edge.control_steps_missed,
                'oldest_action_s': round(
                    max((each.age_s for each in records.actions.get(name, ())), default=0.0), 3
                ),
            }
            for name, robot in board.robots.items()
        },
        'action_age_ms': summarize(ages_ms),
        'round_trip_ms': {
            version_of(policy): summarize([trip for _, trip in line])
            for policy, line in records.round_trips_ms.items()
        },
        'drops': dict(drops),
        'exit_status': dict(run.exit_status),
    }


def gaps_after_kill(found: Figures, records: RunRecords) -> Figures:
    """Return the longest times without an action around the kill."""
    within_ms, between_ms = longest_gaps_ms(
        records.actions.values(), found['at_s'], found['until_s']
    )
    return {
        'longest_gap_ms': round(within_ms, 1),
        'longest_pause_between_episodes_ms': round(between_ms, 1),
    }


def as_text(figures: Figures) -> str:
    """Return the summary as text."""
    lines = [f'In {figures["seconds"]:.0f} s:']
    for act, found in figures['acts'].items():
        mark = 'ok    ' if found['shown'] else 'FAILED'
        lines.append(f'  {mark} {ACT_CLAIMS[act]}: {ACT_TEXT[act](found)}')
    audit = figures['audit']
    if audit:
        mark = 'ok    ' if audit['violations'] == 0 else 'FAILED'
        lines.append(f'  {mark} audit of {audit["traces"]} traces: {audit_text(audit)}')
    lines.append('')
    for version, rate in sorted(figures['episodes'].items()):
        lines.append(f'  {version}: {rate["successes"]} of {rate["ended"]} targets reached')
    age = figures['action_age_ms']
    if age['n']:
        lines.append(f'  age of actions: p50 {age["p50"]:.0f} ms, oldest {age["max"]:.0f} ms')
    drops = ', '.join(f'{reason} {count}' for reason, count in sorted(figures['drops'].items()))
    lines.append(f'  dropped by the robots: {drops or "nothing"}')
    if figures['error']:
        lines.append(f'  STOPPED: {figures["error"]}')
    return '\n'.join(lines)


def serve_text(found: Figures) -> str:
    torch = found['robots_with_torch']
    weights = f'TORCH in {", ".join(torch)}' if torch else 'no torch in their processes'
    return (
        f'{found["robots"]} robots, {weights}, requests over {LINK_TEXT[found["link"]]}; the '
        f'first moves after {found["first_motion_s"]} s, all after {found["all_move_s"]} s'
    )


def shadow_text(found: Figures) -> str:
    return (
        f'{found["samples"]} requests of {found["episodes"]} episodes compared, '
        f'{found["divergence_rad"]:.3f} rad from the executed actions'
    )


def kill_text(found: Figures) -> str:
    return (
        f'{found["robots_stalled"]} robots stalled; at most '
        f'{found["longest_gap_ms"]:.0f} ms between two actions, '
        f'{found["longest_pause_between_episodes_ms"]:.0f} ms between two episodes; '
        f'marked unavailable after {found["missed_after_s"]:.1f} s, back after '
        f'{found["back_after_s"]:.0f} s'
    )


def canary_text(found: Figures) -> str:
    steps = ', '.join(f'{s["share_percent"]} % at {s["after_s"]:.0f} s' for s in found['steps'])
    return f'{found["ends"].replace("_", " ")} after {found["took_s"]:.0f} s ({steps})'


def broken_text(found: Figures) -> str:
    return (
        f'{found["why"].removeprefix("rolled back: ")} '
        f'({found["episodes_with_v3"]} episodes with it, '
        f'{found["episodes_with_v3_a_second_later"]} a second later; the safety cage changed '
        f'{found["commands_changed_by_the_cage"]} commands)'
    )


def audit_text(audit: Figures) -> str:
    torn = audit['without_end']
    killed = f'; {torn} without an end, which a killed server leaves' if torn else ''
    return (
        f'{audit["judged"]} commands, requests and episodes judged, {audit["violations"]} '
        f'violations{killed}'
    )


def learn_text(found: Figures) -> str:
    evidence = ', '.join(f'{each["evidence"]:.0f} : 1' for each in found['rounds'])
    return (
        f'{found["before_percent"]} % of the attempts reached their target before, '
        f'{found["after_percent"]} % after {len(found["rounds"])} rounds, in '
        f'{found["took_s"]:.0f} s; evidence of the promotions {evidence}'
    )


def poison_text(found: Figures) -> str:
    return f'{found["verdict"]}, {found["episodes"]} episodes with it: {found["why"]}'


def regress_text(found: Figures) -> str:
    return (
        f'{found["why"].removeprefix("rolled back: ")} ({found["rolled_back_after_s"]:.0f} s '
        f'after the targets got narrow; {found["episodes_with_it"]} episodes with it, '
        f'{found["episodes_with_it_a_second_later"]} a second later)'
    )


ACT_TEXT = {
    'serve': serve_text,
    'shadow': shadow_text,
    'kill': kill_text,
    'canary': canary_text,
    'broken': broken_text,
    'learn': learn_text,
    'poison': poison_text,
    'regress': regress_text,
}


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

# SPDX-License-Identifier: Apache-2.0
"""Summarizes a run of the demo as JSON and as text. Pure; any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lerobot_serve.demo.results.run_records import longest_gaps_ms, RunRecords, with_gain
from lerobot_serve.demo.results.scoreboard import named, Scoreboard, version_of
from lerobot_serve.demo.tour.act_order import ACT_CLAIMS
from lerobot_serve.demo.tour.commands import TypedCommand
from lerobot_serve.demo.tour.link import ROS, ZENOH
from lerobot_serve.telemetry.percentiles import summarize

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

# SPDX-License-Identifier: Apache-2.0
"""Summarizes a run of the demo as JSON and as text. Pure; any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lerobot_serve.demo.process_specs import PHASE_CLAIMS
from lerobot_serve.demo.scoreboard import Scoreboard, version_of
from lerobot_serve.telemetry.percentiles import summarize

Figures = dict[str, Any]


def summarize_run(
    board: Scoreboard,
    phases: Mapping[str, Figures],
    audit: Figures,
    exit_status: Mapping[str, int],
    seconds: float,
    error: str = '',
) -> Figures:
    """Return the figures; `ok` states whether each phase proved its claim."""
    robots = board.robots.values()
    drops: Counter[str] = Counter()
    for robot in robots:
        drops.update(robot.drops)
    shown = all(each['shown'] for each in phases.values())
    return {
        'ok': shown and not error and audit.get('violations') == 0,
        'error': error,
        'seconds': round(seconds, 1),
        'phases': dict(phases),
        'audit': audit,
        'episodes': {
            version_of(policy) or 'unknown': {'ended': of, 'successes': good}
            for policy, (good, of) in board.successes().items()
        },
        'robots': {
            name: {
                'executed': robot.executed,
                'chunks': robot.chunks,
                'stalls': robot.stalls,
                'cage_trips': robot.cage_trips,
                'ticks': robot.ticks,
                'control_steps_missed': robot.control_steps_missed,
                'oldest_action_s': round(robot.max_action_age_s, 3),
            }
            for name, robot in board.robots.items()
        },
        'action_age_ms': summarize(board.ages_ms),
        'round_trip_ms': {
            version_of(policy): summarize([trip for _, trip in line])
            for policy, line in board.round_trips_ms.items()
            if policy
        },
        'drops': dict(drops),
        'exit_status': dict(exit_status),
    }


def as_text(figures: Figures) -> str:
    """Return the summary as text."""
    lines = [f'In {figures["seconds"]:.0f} s:']
    for phase, found in figures['phases'].items():
        mark = 'ok    ' if found['shown'] else 'FAILED'
        lines.append(f'  {mark} {PHASE_CLAIMS[phase]}: {PHASE_TEXT[phase](found)}')
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
    return f'{found["robots"]} robots, {weights}, first actions after {found["first_action_s"]} s'


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
        f'marked unavailable after {found["missed_after_s"]:.1f} s'
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
    return (
        f'{audit["judged"]} commands, requests and episodes judged, {audit["violations"]} '
        f'violations; {audit["without_end"]} trace without an end, of the killed server'
    )


PHASE_TEXT = {
    'serve': serve_text,
    'shadow': shadow_text,
    'kill': kill_text,
    'canary': canary_text,
    'broken': broken_text,
}

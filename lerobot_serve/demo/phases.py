# SPDX-License-Identifier: Apache-2.0
"""
The phases of the demo. Each returns its figures; `shown` states whether they prove its claim.

The main thread; a phase that does not complete raises UserError.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import time
from typing import Any

from lerobot_serve.demo import process_specs, steady_time
from lerobot_serve.demo.phase_context import PhaseContext
from lerobot_serve.demo.scoreboard import version_of

START_S, SERVE_S, SHADOW_S, KILL_S, CANARY_S, BROKEN_S = 120.0, 120.0, 120.0, 60.0, 900.0, 300.0
# observation after the kill, longer than the buffer of a robot
AFTER_KILL_S = 4.0
EPISODES_NEEDED = 6
SHADOW_SAMPLES = 40
Figures = dict[str, Any]


def serve(context: PhaseContext) -> Figures:
    """Serve robots without weights from two servers with v1."""
    board = context.board
    context.start_servers()
    # before v1 is up the router would place episodes in slot b, with v2
    context.wait(lambda: board.slot('a').state == 'HEALTHY', START_S, 'slot a serves v1')
    context.start_robots()
    context.wait(
        lambda: all(r.executed for r in board.robots.values()), START_S, 'the robots move'
    )
    first_action_s = time.monotonic() - context.started_s
    context.add_event(f'all robots move, {first_action_s:.0f} s after the start')
    context.wait(lambda: len(board.ended_episodes) >= EPISODES_NEEDED, SERVE_S, 'episodes end')
    edges = [f'{name}_edge' for name in board.robots]
    with_torch = [name for name in edges if holds_torch(context.processes.processes[name].pid)]
    return {
        'shown': not with_torch,
        'robots': len(board.robots),
        'first_action_s': round(first_action_s, 1),
        'robots_with_torch': with_torch,
    }


def shadow(context: PhaseContext) -> Figures:
    """Compare v2 in shadow with v1; v2 controls no robot."""
    board = context.board
    context.wait(
        lambda: board.shadow.samples >= SHADOW_SAMPLES and not board.shadow.unmet_requirements,
        SHADOW_S,
        'v2 is compared in shadow',
    )
    seen = board.shadow
    context.add_event(f'v2 in shadow: {seen.samples} samples, {seen.divergence:.3f} rad apart')
    return {
        'shown': board.placed_after('v2', 0.0) == 0,
        'policy': seen.policy,
        'live_policy': seen.live,
        'episodes': seen.episodes,
        'samples': seen.samples,
        'divergence_rad': round(seen.divergence, 4),
        'would_trip_the_cage': seen.trips,
        'latency_ms_p50': round(seen.latency_ms_p50, 1),
    }


def kill_server(context: PhaseContext) -> Figures:
    """Kill the busiest server during an episode; no robot stops."""
    board = context.board
    node = board.busiest('a')
    victim = node.split('/')[1]
    before = {name: (r.stalls, r.chunks) for name, r in board.robots.items()}
    with board.lock:
        for robot in board.robots.values():
            robot.max_action_gap_s = robot.max_episode_gap_s = 0.0
    killed_s = context.kill(victim)
    context.wait(
        lambda: board.replica_state('a', node) in ('UNHEALTHY', 'UNAVAILABLE'),
        KILL_S,
        'the router marks the server unavailable',
    )
    missed_s = steady_time.now_s() - killed_s
    context.wait(
        lambda: all(r.chunks > before[name][1] + 1 for name, r in board.robots.items()),
        KILL_S,
        'all robots receive chunks again',
    )
    context.wait_for_s(max(0.0, AFTER_KILL_S - (steady_time.now_s() - killed_s)))
    stalled = sum(r.stalls > before[name][0] for name, r in board.robots.items())
    gap_ms = 1e3 * max(robot.max_action_gap_s for robot in board.robots.values())
    pause_ms = 1e3 * max(robot.max_episode_gap_s for robot in board.robots.values())
    context.add_event(
        f'{stalled} robots stalled; at most {gap_ms:.0f} ms between two actions, '
        f'{pause_ms:.0f} ms between two episodes'
    )
    context.start_server(victim, 'v1')
    back_s = context.wait(
        lambda: board.replica_state('a', node) == 'READY', KILL_S, f'{victim} is back'
    )
    context.add_event(f'{victim} is back after {back_s:.0f} s', mark=f'{victim} back')
    return {
        'shown': stalled == 0,
        'server': node,
        'at_s': killed_s,
        'missed_after_s': round(missed_s, 2),
        'robots_stalled': stalled,
        'longest_gap_ms': round(gap_ms, 1),
        'longest_pause_between_episodes_ms': round(pause_ms, 1),
    }


def canary(context: PhaseContext) -> Figures:
    """Promote v2 step by step after it proved not to be worse."""
    board = context.board
    begun_s = steady_time.now_s()
    context.node.change_parameters(process_specs.ROUTER, {'canary.plan': list(context.plan)})
    seen: list[dict[str, Any]] = []

    def is_over() -> bool:
        now = board.canary
        if now.share_percent and (not seen or seen[-1]['share_percent'] != now.share_percent):
            seen.append(
                {'share_percent': now.share_percent, 'after_s': steady_time.now_s() - begun_s}
            )
        return now.state in ('promoted', 'rolled_back')

    took_s = context.wait(is_over, CANARY_S, 'the canary ends')
    end = board.canary
    context.add_event(f'v2 is {end.state.replace("_", " ")} after {took_s:.0f} s')
    return {
        'shown': end.state == 'promoted',
        'ends': end.state,
        'why': end.text,
        'plan': list(context.plan),
        'steps': [{**each, 'after_s': round(each['after_s'], 1)} for each in seen],
        'took_s': round(took_s, 1),
        'successes': {version_of(p): list(n) for p, n in board.successes().items() if p},
    }


def broken_policy(context: PhaseContext) -> Figures:
    """Roll back v3, which jumps and sometimes returns NaN, without an operator."""
    board = context.board
    for name in process_specs.CHAMPIONS:
        context.load(name, 'v2')
    context.wait(
        lambda: version_of(board.slot('a').policy) == 'v2' and board.slot('a').state == 'HEALTHY',
        BROKEN_S,
        'slot a serves v2',
    )
    context.node.change_parameters(
        process_specs.ROUTER, {'split_percent': 100, 'shadow_minimum_episodes': 0}
    )
    trips = sum(robot.cage_trips for robot in board.robots.values())
    context.load(process_specs.CANDIDATE, 'v3')
    context.wait(lambda: version_of(board.canary.candidate) == 'v3', BROKEN_S, 'v3 is a candidate')
    took_s = context.wait(
        lambda: board.canary.state == 'rolled_back', BROKEN_S, 'v3 is rolled back'
    )
    back_s, end = steady_time.now_s(), board.canary
    first_s = board.first_placed('v3')
    context.add_event(f'v3 is rolled back: {end.reason[:160]}')
    context.wait_for_s(AFTER_KILL_S)
    return {
        # if v3 fails the probes of the router, it receives no episode
        'shown': board.placed_after('v3', back_s + 1.0) == 0,
        'why': end.text,
        'episodes_with_v3': board.placed_after('v3', 0.0),
        'rolled_back_after_first_episode_s': round(back_s - first_s, 1) if first_s else None,
        'episodes_with_v3_a_second_later': board.placed_after('v3', back_s + 1.0),
        'took_s': round(took_s, 1),
        'commands_changed_by_the_cage': sum(r.cage_trips for r in board.robots.values()) - trips,
        'robots_stalled': sum(robot.stalls for robot in board.robots.values()),
    }


PHASE_FUNCTIONS: dict[str, Callable[[PhaseContext], Figures]] = {
    'serve': serve,
    'shadow': shadow,
    'kill': kill_server,
    'canary': canary,
    'broken': broken_policy,
}


def holds_torch(pid: int) -> bool:
    """Return whether a process has torch in its memory map."""
    try:
        return 'libtorch' in Path(f'/proc/{pid}/maps').read_text()
    except OSError:
        return False

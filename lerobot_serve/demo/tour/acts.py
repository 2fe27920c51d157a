# SPDX-License-Identifier: Apache-2.0
"""
The acts of the demo. Each returns its figures; `shown` states whether they prove its claim.

The main thread; an act that does not complete raises UserError.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lerobot_serve.contract.records import ReplicaState
from lerobot_serve.demo import fleet_names, steady_time
from lerobot_serve.demo.fleet_names import ROUTER, server_node_name
from lerobot_serve.demo.results.scoreboard import Scoreboard, version_of
from lerobot_serve.demo.tour import fleet_files
from lerobot_serve.demo.tour.act_context import ActContext
from lerobot_serve.demo.tour.link import ROS
from lerobot_serve.router.canary.states import CanaryPhase

START_S, SERVE_S, SHADOW_S, KILL_S, CANARY_S = 120.0, 120.0, 120.0, 60.0, 900.0
# observation after the kill, longer than the buffer of a robot
AFTER_KILL_S = 4.0
SHADOW_SAMPLES = 12
PLAN_REMARK = 'share of new episodes to v2 [%], and outcomes of v2 that the step needs'
# half of the episodes, so that the robots meet v3 soon
BROKEN_PLAN, BROKEN_REMARK = '50:4,100', 'load v3 into slot b, then the same with v3'
UNSERVED = (ReplicaState.State.UNHEALTHY, ReplicaState.State.UNAVAILABLE)
Figures = dict[str, Any]


def serve(context: ActContext) -> Figures:
    """Serve robots without weights from two servers with v1."""
    board = context.board
    context.record('v1')
    context.wait(lambda: board.first_motions_s, START_S, 'the first robot moves')
    first_s = min(board.first_motions_s.values()) - steady_time.START_S
    context.add_event(f'the first robot moves, {first_s:.1f} s after the start')
    context.wait(
        lambda: board.first_motions_s.keys() == board.robots.keys(), START_S, 'all robots move'
    )
    all_s = max(board.first_motions_s.values()) - steady_time.START_S
    context.add_event(f'all robots move, {all_s:.1f} s after the start')
    context.run_verb('robots')
    context.wait(
        lambda: {each.robot for each in board.ended_episodes} == {*board.robots},
        SERVE_S,
        'each robot ends an episode',
    )
    pids = {name: context.process_id(f'{name}/edge_controller') for name in board.robots}
    with_torch = [name for name, pid in pids.items() if holds_torch(pid)]
    servers = [ROUTER, *map(server_node_name, fleet_names.SERVERS)]
    over_ros = context.node.request_topics(servers)
    return {
        'shown': not with_torch and bool(over_ros) == (context.link.name == ROS),
        'robots': len(board.robots),
        'link': context.link.name,
        'request_topics_over_ros': over_ros,
        'first_motion_s': round(first_s, 1),
        'all_move_s': round(all_s, 1),
        'robots_with_torch': with_torch,
    }


def shadow(context: ActContext) -> Figures:
    """Compare v2 in shadow with v1; v2 controls no robot."""
    board = context.board
    context.up(fleet_files.CANDIDATE_FILE, 'v2 in slot b, and in shadow')
    context.wait(
        lambda: (
            context.shadow().samples >= SHADOW_SAMPLES
            and not context.shadow().unmet_requirements
            and is_served(context, 'b')
        ),
        SHADOW_S,
        'v2 is compared in shadow',
    )
    context.run_verb('rollout', 'status')
    seen = context.shadow()
    divergence, latency_ms = seen.divergence_mean, seen.latency_ms_p95
    context.add_event(f'v2 in shadow: {seen.samples} requests, {divergence:.3f} rad apart')
    return {
        'shown': board.placed_after('v2', 0.0) == 0,
        'policy': seen.shadow_policy,
        'episodes': seen.episodes,
        'samples': seen.samples,
        'divergence_rad': round(divergence, 4),
        'would_trip_the_cage': seen.cage_trips,
        'latency_ms_p95': round(latency_ms, 1),
    }


def kill_server(context: ActContext) -> Figures:
    """Kill the busiest server during an episode; no robot stops."""
    board = context.board
    busiest = max(context.slot('a').replicas, key=lambda replica: replica.chunks).server
    victim = next(n for n in fleet_names.CHAMPIONS if server_node_name(n) in busiest)
    before = {name: (r.edge.stalls, r.edge.chunks_accepted) for name, r in board.robots.items()}
    killed_s = context.kill(victim, f'{victim}/policy_server')
    context.wait(
        lambda: context.replica('a', busiest).state in UNSERVED,
        KILL_S,
        'the router marks the server unavailable',
    )
    missed_s = steady_time.now_s() - killed_s
    context.run_verb('robots')
    context.wait(
        lambda: all(
            r.edge.chunks_accepted > before[name][1] + 1 for name, r in board.robots.items()
        ),
        KILL_S,
        'all robots receive chunks again',
    )
    context.wait_for_s(max(0.0, AFTER_KILL_S - (steady_time.now_s() - killed_s)))
    stalled = sum(r.edge.stalls > before[name][0] for name, r in board.robots.items())
    context.add_event(f'{stalled} robots stalled')
    context.wait(
        lambda: context.replica('a', busiest).state is ReplicaState.State.READY,
        KILL_S,
        f'{victim} is back',
    )
    back_s = steady_time.now_s() - killed_s
    context.add_event(
        f'`up` has started {victim} again, {back_s:.0f} s after the kill', mark=f'{victim} back'
    )
    return {
        'shown': stalled == 0,
        'server': busiest,
        'at_s': killed_s,
        'until_s': killed_s + AFTER_KILL_S,
        'missed_after_s': round(missed_s, 2),
        'back_after_s': round(back_s, 1),
        'robots_stalled': stalled,
    }


def canary(context: ActContext) -> Figures:
    """Promote v2 step by step after it proved not to be worse, and make it the champion."""
    begun_s = steady_time.now_s()
    context.run_verb('rollout', 'start', 'v2', '--plan', context.plan, '--yes', remark=PLAN_REMARK)
    seen: list[dict[str, Any]] = []

    def is_over() -> bool:
        now = context.router().canary
        if now.share_percent and (not seen or seen[-1]['share_percent'] != now.share_percent):
            seen.append(
                {
                    'share_percent': now.share_percent,
                    'after_s': round(steady_time.now_s() - begun_s, 1),
                }
            )
        return now.state in (CanaryPhase.PROMOTED, CanaryPhase.ROLLED_BACK)

    context.wait(is_over, CANARY_S, 'the canary ends')
    end, took_s = context.router().canary, steady_time.now_s() - begun_s
    context.add_event(f'v2 is {end.state.word.replace("_", " ")} after {took_s:.0f} s')
    if end.state is CanaryPhase.PROMOTED:
        context.record('v2')
        context.run_verb('rollout', 'finish', '--yes', remark='v2 becomes the champion in slot a')
    return {
        'shown': end.state is CanaryPhase.PROMOTED,
        'ends': end.state.word,
        'why': end.text,
        'plan': context.plan,
        'steps': seen,
        'took_s': round(took_s, 1),
        'successes': {version_of(p): list(n) for p, n in context.board.successes().items() if p},
    }


def broken_policy(context: ActContext) -> Figures:
    """Roll back v3, which jumps and sometimes returns NaN, without an operator."""
    board = context.board
    trips = cage_trips(board)
    context.record('v2', 'v3')
    policy = (context.folder / fleet_files.POLICIES / 'v3').absolute()
    context.run_verb(
        'rollout',
        'start',
        str(policy),
        '--plan',
        BROKEN_PLAN,
        '--skip-shadow',
        '--yes',
        remark=BROKEN_REMARK,
    )
    begun_s = steady_time.now_s()
    back_s, later_s, why = context.wait_for_rollback('v3')
    first_s = board.first_placed('v3')
    context.record()
    context.run_verb('rollout', 'history', '--hours', '1')
    return {
        # if v3 fails the probes of the router, it receives no episode
        'shown': board.placed_after('v3', later_s) == 0,
        'why': why,
        'episodes_with_v3': board.placed_after('v3', 0.0),
        'rolled_back_after_first_episode_s': round(back_s - first_s, 1) if first_s else None,
        'episodes_with_v3_a_second_later': board.placed_after('v3', later_s),
        'took_s': round(back_s - begun_s, 1),
        'commands_changed_by_the_cage': cage_trips(board) - trips,
        'robots_stalled': sum(robot.edge.stalls for robot in board.robots.values()),
    }


SERVING_ACTS: dict[str, Callable[[ActContext], Figures]] = {
    'serve': serve,
    'shadow': shadow,
    'kill': kill_server,
    'canary': canary,
    'broken': broken_policy,
}


def is_served(context: ActContext, slot: str) -> bool:
    """Return whether a replica of a slot is ready; the slot itself may wait for its shadow."""
    return any(
        replica.state is ReplicaState.State.READY for replica in context.slot(slot).replicas
    )


def cage_trips(board: Scoreboard) -> int:
    return sum(robot.edge.cage_trips for robot in board.robots.values())


def holds_torch(pid: int) -> bool:
    """Return whether a process has torch in its memory map."""
    try:
        return 'libtorch' in Path(f'/proc/{pid}/maps').read_text()
    except OSError:
        return False

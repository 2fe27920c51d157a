# SPDX-License-Identifier: Apache-2.0
"""
Build the messages of the edge controller for operators and recorders. Pure functions; any thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.operator_control import LATCHED_TEXT, OperatorControl, STOPPED_TEXT
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.wire.schema import TASK_LIMIT, TEXT_LIMIT
from lerobot_serve_interfaces.msg import DropCount, EdgeState, ExecutedAction

REASON_LIMIT = 256
LEVELS = {
    ConnectionState.STREAMING: DiagnosticStatus.OK,
    ConnectionState.CONNECTING: DiagnosticStatus.WARN,
    ConnectionState.DEGRADED: DiagnosticStatus.WARN,
    ConnectionState.STALLED: DiagnosticStatus.WARN,
    ConnectionState.RECONNECTING: DiagnosticStatus.WARN,
    ConnectionState.DEAD: DiagnosticStatus.ERROR,
}


@dataclass(frozen=True, slots=True)
class EdgeView:
    """The parts of the edge that reports read."""

    requester: Requester
    controller: Controller
    operation: OperatorControl
    actions: ActionQueue
    beat: Any


def executed_action(
    executed: ExecutedStep, *, stamp: Any, control_step: int, client_id: str
) -> ExecutedAction:
    """Return the record of one command."""
    judgement, decision = executed.judgement, executed.decision
    message = ExecutedAction(
        stamp=stamp,
        control_step=control_step,
        age_s=executed.age_ns / 1e9,
        cage_result=int(judgement.verdict),
        rung=int(decision.kind),
        client_id=client_id,
        reason=truncate(
            judgement.reason or ('' if executed.planned else decision.reason), REASON_LIMIT
        ),
        raw=decision.wanted.tolist(),
        commanded=[] if judgement.command is None else judgement.command.tolist(),
    )
    if executed.planned:
        source = executed.planned.source
        message.seq, message.chunk_row = source.seq, executed.planned.row
        message.session_epoch, message.episode = source.session_epoch, source.episode
        message.episode_id = source.episode_id
        message.slot, message.policy = source.slot, source.policy
    return message


def edge_state(view: EdgeView, *, stamp: Any, client_id: str, alarm: str = '') -> EdgeState:
    """Return the state of the controller; `alarm` precedes its reason."""
    progress, controller = view.requester.exchange.progress, view.controller
    standing = view.requester.connection.standing
    drops = count_drops(view)
    return EdgeState(
        stamp=stamp,
        client_id=client_id,
        server=progress.server,
        episode_id=progress.episode_id,
        task=truncate(progress.task, TASK_LIMIT),
        slot=progress.slot,
        policy=progress.policy,
        state=int(standing.state),
        rung=int(controller.rung),
        paused=view.operation.paused,
        reason=truncate('; '.join(text for text in (alarm, explain(view)) if text), TEXT_LIMIT),
        queue_remaining_s=view.requester.left_s,
        action_age_s=controller.age_ns / 1e9,
        round_trip_ms=progress.round_trip_ms,
        network_ms=progress.network_ms,
        control_steps=view.beat.beats - controller.ticks_skipped,
        control_steps_missed=control_steps_missed(view),
        actions_executed=controller.actions_executed,
        requests_sent=progress.requests_sent,
        chunks_accepted=progress.chunks_accepted,
        stalls=controller.stalls,
        cage_trips=controller.cage_trips,
        dropped=[DropCount(reason=name, count=n) for name, n in sorted(drops.items()) if n],
    )


def control_steps_missed(view: EdgeView) -> int:
    """Return the number of missed control steps: too late, or skipped as too close."""
    return view.beat.missed + view.controller.ticks_skipped


def count_drops(view: EdgeView) -> Counter[str]:
    """Return everything that was dropped, by reason."""
    # copied first: the owning thread may add a reason meanwhile
    drops = Counter(view.requester.exchange.drops) + Counter(view.controller.drops)
    drops['cleared_action'] = view.actions.rows_cleared
    drops['rejected_chunk'] = view.actions.chunks_refused
    drops['history_gap'] = view.requester.exchange.history.gaps
    return drops


def count_problems(view: EdgeView) -> Counter[str]:
    """Return the counts for the log: drops, stalls, cage trips."""
    troubles = count_drops(view)
    troubles['stalls'] = view.controller.stalls
    troubles['cage_trips'] = view.controller.cage_trips
    return troubles


def explain(view: EdgeView) -> str:
    """Return the reason of the current state as text."""
    standing, progress = view.requester.connection.standing, view.requester.exchange.progress
    if standing.state == ConnectionState.DEAD:
        held = ' Paused, teardown withheld.' if view.operation.paused else ''
        return f'{standing.reason}.{held} Fix the cause, then call ~/reset'
    if view.controller.latched:
        why = view.controller.latch_reason
        return f'{LATCHED_TEXT} ({why}). Fix the cause, then call ~/reset_cage'
    if view.controller.stopped:
        return f'{STOPPED_TEXT}. Fix the cause, then call ~/reset'
    if view.operation.say is ControlAuthority.OPERATOR:
        return 'paused'
    if view.operation.say is ControlAuthority.NONE:
        return 'no episode runs'
    if view.controller.start_blocked_by:
        return f'motion not started: {view.controller.start_blocked_by}'
    alarm = view.controller.alarm.present
    clamped = alarm.text if alarm else ''
    if standing.state == ConnectionState.STREAMING:
        return '; '.join(filter(None, (clamped, progress.waiting_for)))
    parts = (clamped, standing.reason, progress.waiting_for, progress.failed)
    return '; '.join(part for part in parts if part)


def diagnostics(
    state: EdgeState,
    *,
    name: str,
    latched: bool = False,
    clamped: bool = False,
    rival: bool = False,
    frozen: bool = False,
) -> DiagnosticArray:
    """
    Return the state as rqt_runtime_monitor shows it: an error when the cage is `latched` or a
    `rival` commands the robot, at least a warning when most actions are `clamped` or a camera is
    `frozen`.
    """
    level = LEVELS[ConnectionState(state.state)]
    if latched or rival:
        level = DiagnosticStatus.ERROR
    elif clamped or frozen:
        level = max(level, DiagnosticStatus.WARN)
    values = {
        'server': state.server,
        'policy': state.policy,
        'slot': state.slot,
        'episode': state.episode_id,
        'left to play [s]': f'{state.queue_remaining_s:.2f}',
        'round trip [ms]': f'{state.round_trip_ms:.1f}',
        'stalls': str(state.stalls),
        'cage trips': str(state.cage_trips),
        'control steps missed': str(state.control_steps_missed),
    }
    status = DiagnosticStatus(
        level=level,
        name=f'{name}: {state.client_id}',
        message=ConnectionState(state.state).name + (f': {state.reason}' if state.reason else ''),
        hardware_id=state.client_id,
        values=[KeyValue(key=key, value=value) for key, value in values.items()],
    )
    message = DiagnosticArray(status=[status])
    message.header.stamp = state.stamp
    return message


def truncate(text: str, limit: int) -> str:
    """Return at most `limit` bytes of a text, which may come from a server."""
    return text.encode('utf-8', 'replace')[:limit].decode(errors='ignore')

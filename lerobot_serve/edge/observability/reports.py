# SPDX-License-Identifier: Apache-2.0
"""
Build the messages of the edge controller for operators and recorders. Pure functions; any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from lerobot_serve.contract.limits import TASK_LIMIT, TEXT_LIMIT
from lerobot_serve.edge.action_queue import ActionQueue
from lerobot_serve.edge.control.authority import ControlAuthority, Intervention
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.loop import LoopRate
from lerobot_serve.edge.control.operator_control import (
    LATCHED_TEXT,
    OperatorControl,
    STOPPED_TEXT,
)
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.inputs.latest import ObservationHistory
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve_interfaces.msg import DropCount, EdgeState, ExecutedAction

REASON_LIMIT = 256
NO_TRIPS: Mapping[str, int] = MappingProxyType({})
BY_PERSON = 'taken over by a person'
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
    operator: OperatorControl
    queue: ActionQueue
    history: ObservationHistory
    rate: LoopRate


def executed_action(
    executed: ExecutedStep,
    *,
    stamp: Time,
    control_step: int,
    client_id: str,
    episode_id: str = '',
) -> ExecutedAction:
    """Return the record of one command; `episode_id` is the episode that runs."""
    judgement, decision = executed.judgement, executed.decision
    message = ExecutedAction(
        stamp=stamp,
        control_step=control_step,
        age_s=executed.age_ns / 1e9,
        cage_result=int(judgement.verdict),
        rung=int(decision.kind),
        source=executed.source.value,
        client_id=client_id,
        episode_id=episode_id,
        reason=truncate(
            judgement.reason or ('' if executed.planned else decision.reason), REASON_LIMIT
        ),
        raw=[] if decision.wanted is None else decision.wanted.tolist(),
        commanded=[] if judgement.command is None else judgement.command.tolist(),
        policy_action=[] if executed.policy_action is None else executed.policy_action.tolist(),
        input_ids=executed.input_ids,
    )
    if executed.planned:
        source = executed.planned.source
        message.seq, message.chunk_row = source.seq, executed.planned.row
        message.session_epoch, message.episode = source.session_epoch, source.episode
        message.episode_id = source.episode_id
        message.slot, message.policy = source.slot, source.policy
    return message


def edge_state(view: EdgeView, *, stamp: Time, client_id: str, alarm: str = '') -> EdgeState:
    """Return the state of the controller; `alarm` precedes its reason."""
    status, controller = view.requester.pipeline.status, view.controller
    connection = view.requester.connection.status
    drops = count_drops(view)
    reasons = alarm, explain(view), view.operator.decisions.warning
    return EdgeState(
        stamp=stamp,
        client_id=client_id,
        server=status.server,
        episode_id=status.episode_id,
        task=truncate(status.task, TASK_LIMIT),
        slot=status.slot,
        policy=status.policy,
        state=int(connection.state),
        rung=int(controller.rung),
        paused=view.operator.paused,
        intervention=_intervention(view.operator).value,
        reason=truncate('; '.join(filter(None, reasons)), TEXT_LIMIT),
        queue_remaining_s=view.requester.playable_s,
        action_age_s=controller.age_ns / 1e9,
        round_trip_ms=status.round_trip_ms,
        network_ms=status.network_ms,
        control_steps=view.rate.cycles - controller.steps_skipped,
        control_steps_missed=control_steps_missed(view),
        actions_executed=controller.actions_executed,
        requests_sent=status.requests_sent,
        chunks_accepted=status.chunks_accepted,
        stalls=controller.stalls,
        cage_trips=controller.cage_trips,
        dropped=[DropCount(reason=name, count=n) for name, n in sorted(drops.items()) if n],
    )


def _intervention(operator: OperatorControl) -> Intervention:
    """Return what a person does, who commands nothing while the robot is paused."""
    commands = operator.intervention is Intervention.COMMANDING
    return Intervention.LOST if commands and operator.paused else operator.intervention


def control_steps_missed(view: EdgeView) -> int:
    """Return the number of missed control steps: too late, or skipped as too close."""
    return view.rate.missed + view.controller.steps_skipped


def count_drops(view: EdgeView) -> Counter[str]:
    """Return everything that was dropped, by reason."""
    # copied first: the owning thread may add a reason meanwhile
    drops = Counter(view.requester.pipeline.status.dropped) + Counter(view.controller.dropped)
    drops['cleared_action'] = view.queue.rows_cleared
    drops['rejected_chunk'] = view.queue.chunks_refused
    drops['history_gap'] = view.history.gaps
    return drops


def count_problems(view: EdgeView) -> Counter[str]:
    """Return the counts for the log: drops and stalls."""
    return count_drops(view) + Counter(stalls=view.controller.stalls)


def count_in_steps(view: EdgeView) -> Counter[str]:
    """Return what may happen in each control step: cage trips by cause, missed steps."""
    counts = Counter({f'cage, {n}': c for n, c in view.controller.trip_causes.items()})
    counts['control steps missed'] = control_steps_missed(view)
    return counts


def explain(view: EdgeView) -> str:
    """Return the reason of the current state as text."""
    connection, status = view.requester.connection.status, view.requester.pipeline.status
    if connection.state == ConnectionState.DEAD:
        held = ' Paused, teardown withheld.' if view.operator.paused else ''
        return f'{connection.reason}.{held} Fix the cause, then call ~/reset'
    if view.controller.latched:
        why = view.controller.latch_reason
        return f'{LATCHED_TEXT} ({why}). Fix the cause, then call ~/reset_cage'
    if view.controller.stopped:
        why = view.controller.stop_reason
        return f'{STOPPED_TEXT} ({why}). Fix the cause, then call ~/reset'
    is_taken_over = view.operator.takeover.is_taken_over
    if view.operator.paused:
        return f'paused; {BY_PERSON}' if is_taken_over else 'paused'
    if is_taken_over:
        lost = view.operator.takeover.lost_reason
        return f'{BY_PERSON}; the ladder runs: {lost}' if lost else BY_PERSON
    if view.operator.authority is ControlAuthority.NONE:
        return 'no episode runs'
    if view.controller.start_blocked_by:
        return f'motion not started: {view.controller.start_blocked_by}'
    alarm = view.controller.alarm.current
    clamped = alarm.text if alarm else ''
    if connection.state == ConnectionState.STREAMING:
        return '; '.join(filter(None, (clamped, status.waiting_for)))
    parts = (clamped, connection.reason, status.waiting_for, status.last_failure)
    return '; '.join(part for part in parts if part)


def diagnostics(
    state: EdgeState,
    *,
    name: str,
    halted: bool = False,
    clamped: bool = False,
    has_conflict: bool = False,
    frozen: bool = False,
    trip_causes: Mapping[str, int] = NO_TRIPS,
) -> DiagnosticArray:
    """
    Return the state as rqt_runtime_monitor shows it: an error when the robot is `halted` until a
    person acts or another edge commands it, at least a warning when most actions are `clamped` or
    a camera is `frozen`.
    """
    level = LEVELS[ConnectionState(state.state)]
    if halted or has_conflict:
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
        'cage trips by cause': ', '.join(f'{n} {c}' for n, c in sorted(trip_causes.items())),
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

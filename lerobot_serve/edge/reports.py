"""What the edge controller tells operators and recorders. Pure functions; any thread."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lerobot_serve.edge.controller import Controller, Executed
from lerobot_serve.edge.link import Progress
from lerobot_serve.edge.queue import ActionQueue
from lerobot_serve.edge.requester import Requester
from lerobot_serve.wire.schema import TASK_LIMIT, TEXT_LIMIT
from lerobot_serve_interfaces.msg import DropCount, EdgeState, ExecutedAction

REASON_LIMIT = 256


def executed_action(
    executed: Executed, *, stamp: Any, tick: int, client_id: str
) -> ExecutedAction:
    """Return the record of one command."""
    planned, judgement = executed.planned, executed.judgement
    source = planned.source
    return ExecutedAction(
        stamp=stamp,
        tick=tick,
        seq=source.seq,
        session_epoch=source.session_epoch,
        episode=source.episode,
        chunk_row=planned.row,
        age_s=executed.age_ns / 1e9,
        verdict=int(judgement.verdict),
        rung=EdgeState.RUNG_PLAY,
        client_id=client_id,
        episode_id=source.episode_id,
        slot=source.slot,
        policy=source.policy,
        reason=cut(judgement.reason, REASON_LIMIT),
        raw=planned.action.tolist(),
        commanded=[] if judgement.command is None else judgement.command.tolist(),
    )


def edge_state(
    requester: Requester,
    controller: Controller,
    actions: ActionQueue,
    beat: Any,
    *,
    stamp: Any,
    client_id: str,
    server: str,
    task: str,
    fps: float,
) -> EdgeState:
    """Return what the controller is doing."""
    progress = requester.progress
    left_s = actions.rows_left / fps
    state, reason = describe_state(progress, playing=left_s > 0)
    # copied at once: the thread that owns it may add a reason meanwhile
    drops = Counter(requester.drops) + Counter(controller.drops)
    drops['cleared_action'] = actions.rows_cleared
    drops['history_gap'] = requester.history.gaps
    return EdgeState(
        stamp=stamp,
        client_id=client_id,
        server=server if progress.connected else '',
        episode_id=progress.episode_id,
        task=cut(task, TASK_LIMIT),
        slot=progress.slot,
        policy=progress.policy,
        state=state,
        rung=EdgeState.RUNG_PLAY if left_s > 0 else EdgeState.RUNG_HOLD,
        reason=cut(reason, TEXT_LIMIT),
        queue_remaining_s=left_s,
        action_age_s=controller.age_ns / 1e9,
        round_trip_ms=progress.round_trip_ms,
        network_ms=progress.network_ms,
        ticks=beat.beats,
        ticks_missed=beat.missed,
        actions_executed=controller.actions_executed,
        requests_sent=progress.requests_sent,
        chunks_accepted=progress.chunks_accepted,
        stalls=controller.stalls,
        cage_trips=controller.cage_trips,
        drops=[
            DropCount(reason=reason, count=count)
            for reason, count in sorted(drops.items())
            if count
        ],
    )


def describe_state(progress: Progress, *, playing: bool) -> tuple[int, str]:
    """Return EdgeState.state and its reason."""
    if not progress.connected:
        again = progress.ever_connected
        state = EdgeState.RECONNECTING if again else EdgeState.CONNECTING
        return state, progress.refused
    if not playing:
        return EdgeState.STALLED, progress.waiting_for or progress.failed or 'waiting for a chunk'
    if progress.late:
        return EdgeState.DEGRADED, 'the last request was not answered in time'
    return EdgeState.STREAMING, progress.waiting_for


def cut(text: str, limit: int) -> str:
    """Return at most `limit` bytes of a text, which may have come from a server."""
    return text.encode('utf-8', 'replace')[:limit].decode(errors='ignore')

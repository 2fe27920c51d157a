# SPDX-License-Identifier: Apache-2.0
"""Messages about the router: states, diagnostics and GetStatus. Pure functions."""

from __future__ import annotations

from math import isnan
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.wire.schema import SCHEMA_VERSION, SCHEMA_VERSION_MIN
from lerobot_serve_interfaces.msg import (
    DropCount,
    ReplicaState,
    RouterState,
    ServerStatus,
    SlotState,
)
from lerobot_serve_interfaces.srv import GetStatus

TEXT_LIMIT = 1024


def router_state(
    core: RouterCore, *, stamp: Any, server: str, split_percent: int, drops: dict[str, int]
) -> RouterState:
    """Return the state of the router, its slots and replicas."""
    dispatcher = core.dispatcher
    with dispatcher.lock:
        shares = core.shares()
        slots = [slot_state(core, slot, shares[name]) for name, slot in core.slots.items()]
    bad = [f'slot {slot.slot}: {slot.text}' for slot in slots if slot.state != SlotState.HEALTHY]
    if core.writer.text:
        bad.append(f'decisions are not durable: {core.writer.text}')
    return RouterState(
        stamp=stamp,
        server=server,
        health=core.health,
        text='; '.join(bad)[:TEXT_LIMIT],
        split_percent=split_percent,
        sessions=len(dispatcher.robots),
        slots=slots,
        hedges=dispatcher.forwarder.hedges,
        hedges_won=dispatcher.hedges_won,
        late_replies=drops.get('late_answer', 0),
        dropped=drop_messages(drops),
    )


def slot_state(core: RouterCore, slot: Slot, share_percent: int) -> SlotState:
    stats = core.stats.slot(slot.name)
    return SlotState(
        slot=slot.name,
        policy=slot.policy,
        state=slot_state_code(slot),
        text=slot.text[:TEXT_LIMIT],
        share_percent=share_percent,
        consecutive_failures=slot.health.failures,
        episodes=stats.episodes,
        requests=stats.requests,
        chunks=stats.answers,
        requests_failed=stats.failed.total(),
        episodes_moved_away=stats.moved,
        episodes_succeeded=stats.ended['success'],
        episodes_failed=stats.ended['failure'],
        episodes_aborted=stats.ended['aborted'],
        episodes_unreported=stats.ended['unreported'],
        replicas=[replica_state(replica) for replica in slot],
    )


def slot_state_code(slot: Slot) -> int:
    if slot.bar.verdict in BARRING_VERDICTS:
        return SlotState.BARRED
    if slot.drain:
        return SlotState.DRAINED
    if slot.misfit or slot.unmet_requirements:
        return SlotState.UNQUALIFIED
    if not slot.has_ready_replica:
        return SlotState.UNAVAILABLE
    return SlotState.HEALTHY if slot.is_healthy else SlotState.PROBING


def describe_slots(core: RouterCore) -> list[str]:
    """Return one line a slot for the log."""
    lines, shares = [], core.shares()
    for slot in core.slots.values():
        policy, servers = slot.policy or 'no policy yet', ', '.join(slot.replicas)
        percent = shares[slot.name]
        line = f'slot {slot.name} ({servers}): {policy}, {percent} % of the episodes'
        lines.append(f'{line}; {slot.text}' if slot.text else line)
    return lines


def replica_state(replica: Replica) -> ReplicaState:
    p50, p95 = (replica.latency.percentile_ms(percent) for percent in (50, 95))
    return ReplicaState(
        server=replica.name,
        slot=replica.slot,
        state=int(replica.state),
        text=replica.text[:TEXT_LIMIT],
        policy=replica.report.policy if replica.report else '',
        sessions=max(0, replica.sessions),
        load=replica.report.load if replica.report else 0.0,
        latency_ms_p50=0.0 if isnan(p50) else p50,
        latency_ms_p95=0.0 if isnan(p95) else p95,
        requests=replica.counts['requests'],
        chunks=replica.counts['answers'],
        requests_failed=replica.counts['failures'],
        hedges=replica.counts['hedges'],
        probes=replica.counts['probes'],
    )


def server_status(
    core: RouterCore | None,
    state: int,
    text: str,
    *,
    stamp: Any,
    server: str,
    drops: dict[str, int],
) -> ServerStatus:
    """Return the ServerStatus of the router."""
    status = ServerStatus(
        stamp=stamp,
        server=server,
        slot='prod',
        policy_type='router',
        state=state,
        text=text[:TEXT_LIMIT],
        dropped=drop_messages(drops),
    )
    if core is None:
        return status
    replicas = [r for r in core.replicas.values() if r.is_ready]
    all_stats = [core.stats.slot(name) for name in core.slots]
    status.policy = '|'.join(slot.policy for slot in core.slots.values())[:256]
    status.warmed_up = bool(replicas)
    status.active_sessions = len(core.dispatcher.robots)
    status.max_sessions = sum(replica.report.max_sessions for replica in replicas)
    status.load = max((replica.report.load for replica in replicas), default=0.0)
    status.state_class = max((replica.report.state_class for replica in replicas), default=0)
    status.requests = sum(stats.requests for stats in all_stats)
    status.chunks = sum(stats.answers for stats in all_stats)
    status.superseded = drops.get('superseded', 0)
    return status


def fill_status_reply(response: GetStatus.Response, core: RouterCore | None) -> GetStatus.Response:
    """Fill in the properties that hold in every slot."""
    response.schema_version_min, response.schema_version_max = SCHEMA_VERSION_MIN, SCHEMA_VERSION
    replies = [reply for _, reply in core.control.contracts.values()] if core else []
    if not replies:
        return response
    first = replies[0]
    response.state_names, response.action_names = first.state_names, first.action_names
    response.cameras, response.trained_fps = first.cameras, first.trained_fps
    response.observation_steps = first.observation_steps
    response.observation_stride_steps = first.observation_stride_steps
    response.default_task, response.task_pinned = first.default_task, first.task_pinned
    response.chunk_size = min(reply.chunk_size for reply in replies)
    response.supports_rtc = all(reply.supports_rtc for reply in replies)
    return response


def diagnostics(state: RouterState, *, name: str) -> DiagnosticArray:
    """Return one status for the router and one for each slot, for rqt_runtime_monitor."""
    levels = {'healthy': DiagnosticStatus.OK, 'unavailable': DiagnosticStatus.ERROR}
    whole = DiagnosticStatus(
        name=name,
        hardware_id=name,
        level=levels.get(state.health, DiagnosticStatus.WARN),
        message=f'{state.health}: {state.text}' if state.text else state.health,
        values=_values(
            sessions=state.sessions,
            split_percent=state.split_percent,
            hedges=state.hedges,
            hedges_won=state.hedges_won,
            **{f'dropped {drop.reason}': drop.count for drop in state.dropped},
        ),
    )
    return DiagnosticArray(
        header=_header(state), status=[whole, *(_of_slot(slot, name) for slot in state.slots)]
    )


def _of_slot(slot: SlotState, name: str) -> DiagnosticStatus:
    healthy = slot.state == SlotState.HEALTHY
    return DiagnosticStatus(
        name=f'{name}: slot {slot.slot}',
        hardware_id=name,
        level=DiagnosticStatus.OK if healthy else DiagnosticStatus.WARN,
        message=slot.text or f'{slot.policy}, {slot.share_percent} % of new episodes',
        values=_values(
            policy=slot.policy,
            episodes=slot.episodes,
            chunks=slot.chunks,
            requests_failed=slot.requests_failed,
            episodes_succeeded=slot.episodes_succeeded,
            episodes_failed=slot.episodes_failed,
            **{f'replica {r.server}': r.text or 'ready' for r in slot.replicas},
        ),
    )


def _values(**values: object) -> list[KeyValue]:
    return [KeyValue(key=key, value=str(value)) for key, value in values.items()]


def _header(state: RouterState) -> Any:
    array = DiagnosticArray()
    array.header.stamp = state.stamp
    return array.header


def drop_messages(drops: dict[str, int]) -> list[DropCount]:
    return [DropCount(reason=reason, count=count) for reason, count in sorted(drops.items())]

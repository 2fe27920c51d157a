# SPDX-License-Identifier: Apache-2.0
"""Build messages about the router: states, diagnostics and GetStatus. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from msgspec.structs import replace
from std_msgs.msg import Header

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import (
    FINGERPRINT_LIMIT,
    SCHEMA_VERSION,
    SCHEMA_VERSION_MIN,
    SINGLE_SLOT,
)
from lerobot_serve.contract.records import GetStatusResponse
from lerobot_serve.router.api.messages import drop_messages
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.hedging import Hedging
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import overall_health, Slot
from lerobot_serve.telemetry.process_memory import resident_memory_mb
from lerobot_serve_interfaces.msg import (
    ReplicaState,
    RouterState,
    ServerStatus,
    SlotState,
)

HEALTHY = 'healthy'


def router_state(
    table: RoutingTable,
    hedging: Hedging,
    drops: dict[str, int],
    *,
    context: NodeContext,
    storage_problem: str,
) -> RouterState:
    """Return the state of the router, its slots and replicas."""
    with table.lock:
        shares = table.shares(context.clock())
        slots = [slot_state(table, slot, shares[name]) for name, slot in table.slots.items()]
        health = overall_health(table.slots)
    bad = [f'slot {slot.slot}: {slot.text}' for slot in slots if slot.state != SlotState.HEALTHY]
    if storage_problem:
        bad.append(storage_problem)
    return RouterState(
        stamp=context.stamp(),
        server=context.name,
        health=health,
        text=encodable_text('; '.join(bad)),
        split_percent=table.rules.split_percent,
        sessions=len(table.sessions),
        slots=slots,
        hedges=hedging.hedges,
        hedges_won=hedging.won,
        late_replies=drops.get('late_reply', 0),
        dropped=drop_messages(drops),
    )


def slot_state(table: RoutingTable, slot: Slot, share_percent: int) -> SlotState:
    """Return the state of a slot and its replicas. Under the lock."""
    stats = table.stats.slot(slot.name)
    return SlotState(
        slot=slot.name,
        policy=slot.policy,
        state=slot_state_code(slot),
        text=encodable_text('; '.join(filter(None, (slot.text, slot.waived_requirements)))),
        share_percent=share_percent,
        consecutive_failures=slot.health.failures,
        episodes=stats.episodes,
        requests=stats.requests,
        chunks=stats.chunks,
        requests_failed=stats.failed.total(),
        episodes_moved_away=stats.moved,
        episodes_succeeded=stats.ended['success'],
        episodes_failed=stats.ended['failure'],
        episodes_aborted=stats.ended['aborted'],
        episodes_unreported=stats.ended['unreported'],
        replicas=[replica_state(replica) for replica in slot],
    )


def slot_state_code(slot: Slot) -> int:
    if slot.verdict_record.verdict in BARRING_VERDICTS:
        return int(SlotState.BARRED)
    if slot.drain:
        return int(SlotState.DRAINED)
    if slot.incompatibility or slot.unmet_requirements:
        return int(SlotState.UNQUALIFIED)
    if not slot.has_ready_replica:
        return int(SlotState.UNAVAILABLE)
    return int(SlotState.HEALTHY if slot.is_healthy else SlotState.PROBING)


def describe_slots(table: RoutingTable, now_ns: int) -> list[str]:
    """Return one log line per slot."""
    lines: list[str] = []
    with table.lock:
        shares = table.shares(now_ns)
    for slot in table.slots.values():
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
        text=encodable_text(replica.text),
        policy=replica.policy,
        sessions=max(0, replica.sessions),
        load=replica.load,
        latency_ms_p50=0.0 if isnan(p50) else p50,
        latency_ms_p95=0.0 if isnan(p95) else p95,
        requests=replica.counts['requests'],
        chunks=replica.counts['chunks'],
        requests_failed=replica.counts['failures'],
        hedges=replica.counts['hedges'],
        probes=replica.counts['probes'],
    )


def server_status(
    table: RoutingTable | None,
    drops: dict[str, int],
    *,
    server_state: tuple[int, str],
    stamp: Time,
    server: str,
) -> ServerStatus:
    """Return the ServerStatus of the router; `server_state` has its state and a text."""
    state, text = server_state
    status = ServerStatus(
        stamp=stamp,
        server=server,
        slot=SINGLE_SLOT,
        policy_type='router',
        memory_mb=resident_memory_mb(),
        state=state,
        text=encodable_text(text),
        dropped=drop_messages(drops),
    )
    if table is None:
        return status
    ready = [replica for replica in table.replicas.values() if replica.is_ready]
    found = [replica.report for replica in ready if replica.report]
    all_stats = [table.stats.slot(name) for name in table.slots]
    policies = '|'.join(slot.policy for slot in table.slots.values())
    status.policy = encodable_text(policies, FINGERPRINT_LIMIT)
    status.warmed_up = bool(ready)
    status.active_sessions = len(table.sessions)
    status.max_sessions = sum(report.max_sessions for report in found)
    status.load = max((report.load for report in found), default=0.0)
    status.state_class = max((report.state_class for report in found), default=0)
    status.requests = sum(stats.requests for stats in all_stats)
    status.chunks = sum(stats.chunks for stats in all_stats)
    status.superseded = drops.get('superseded', 0)
    return status


def status_reply(replies: Sequence[GetStatusResponse]) -> GetStatusResponse:
    """Return the properties that hold in every slot, from the replies of the slots."""
    return replace(
        replies[0] if replies else GetStatusResponse(),
        schema_version_min=SCHEMA_VERSION_MIN,
        schema_version_max=SCHEMA_VERSION,
        chunk_size=min((reply.chunk_size for reply in replies), default=0),
        supports_rtc=bool(replies) and all(reply.supports_rtc for reply in replies),
    )


def health_text(health: str, text: str) -> str:
    """Return health and reason; beside healthy slots it is one of the router, and stands alone."""
    return text if text and health == HEALTHY else ': '.join(filter(None, (health, text)))


def diagnostics(state: RouterState, *, name: str) -> DiagnosticArray:
    """Return one status for the router and one for each slot, for rqt_runtime_monitor."""
    text = health_text(state.health, state.text)
    levels = {HEALTHY: DiagnosticStatus.OK, 'unavailable': DiagnosticStatus.ERROR}
    whole = DiagnosticStatus(
        name=name,
        hardware_id=name,
        level=levels.get(text.partition(':')[0], DiagnosticStatus.WARN),
        message=text,
        values=_values(
            sessions=state.sessions,
            split_percent=state.split_percent,
            hedges=state.hedges,
            hedges_won=state.hedges_won,
            **{f'dropped {drop.reason}': drop.count for drop in state.dropped},
        ),
    )
    return DiagnosticArray(
        header=Header(stamp=state.stamp),
        status=[whole, *(_slot_diagnostics(slot, name) for slot in state.slots)],
    )


def _slot_diagnostics(slot: SlotState, name: str) -> DiagnosticStatus:
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

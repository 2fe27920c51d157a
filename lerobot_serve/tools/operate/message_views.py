# SPDX-License-Identifier: Apache-2.0
"""Convert messages of routers, servers, edges and learners into plain data. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isinf, isnan

from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate.fleet_state import (
    CanaryView,
    EDGE_STATES,
    GuardView,
    INTERVENTIONS,
    REPLICA_STATES,
    ReplicaView,
    RobotView,
    RouterView,
    RUNGS,
    ShadowView,
    SLOT_STATES,
    SlotView,
    unknown_name,
    UnknownPhase,
)
from lerobot_serve.tools.operate.learners.learner_state import (
    known_loss,
    known_remaining_s,
    known_share,
    LEARNER_PHASES,
    LearnerView,
)
from lerobot_serve.tools.operate.swap.server_view import SERVER_STATES, ServerView, SwapPhase
from lerobot_serve_interfaces.msg import (
    CanaryState,
    EdgeState,
    GuardState,
    LearnerState,
    ReplicaState,
    RouterState,
    ServerStatus,
    ShadowSummary,
    SlotState,
)

PHASES = {getattr(CanaryState, phase.name): phase for phase in CanaryPhase}
SLOT_NAMES = {getattr(SlotState, name): name for name in SLOT_STATES}
REPLICA_NAMES = {getattr(ReplicaState, name): name for name in REPLICA_STATES}
EDGE_NAMES = {getattr(EdgeState, name): name for name in EDGE_STATES}
RUNG_NAMES = {getattr(EdgeState, f'RUNG_{name}'): name for name in RUNGS}
INTERVENTION_NAMES = {getattr(EdgeState, f'INTERVENTION_{name}'): name for name in INTERVENTIONS}
LEARNER_NAMES = {getattr(LearnerState, name): name for name in LEARNER_PHASES}
SERVER_NAMES = {getattr(ServerStatus, name): name for name in SERVER_STATES}
SWAP_PHASES = {
    getattr(ServerStatus, f'SWAP_{phase.name}'): phase
    for phase in SwapPhase
    if phase is not SwapPhase.UNKNOWN
}


def router_view(name: str, state: RouterState, canary: CanaryState, age_s: float) -> RouterView:
    """Return the view of a router."""
    return RouterView(
        name=name,
        health=state.health,
        text=state.text,
        split_percent=state.split_percent,
        slots=tuple(_slot(slot) for slot in state.slots),
        canary=canary_view(canary),
        age_s=age_s,
    )


def _slot(slot: SlotState) -> SlotView:
    return SlotView(
        slot=slot.slot,
        policy=slot.policy,
        state=SLOT_NAMES.get(slot.state, unknown_name(slot.state)),
        text=slot.text,
        share_percent=slot.share_percent,
        chunks=slot.chunks,
        requests_failed=slot.requests_failed,
        replicas=_replicas(slot.replicas),
    )


def _replicas(replicas: Sequence[ReplicaState]) -> tuple[ReplicaView, ...]:
    return tuple(
        ReplicaView(
            server=each.server,
            state=REPLICA_NAMES.get(each.state, unknown_name(each.state)),
            text=each.text,
            policy=each.policy,
            chunks=each.chunks,
            latency_ms_p95=each.latency_ms_p95,
        )
        for each in replicas
    )


def canary_view(message: CanaryState) -> CanaryView:
    """Return the view of a canary."""
    return CanaryView(
        phase=PHASES.get(message.state, UnknownPhase(message.state)),
        candidate=message.candidate_policy,
        champion=message.champion_policy,
        step=message.step,
        step_count=message.step_count,
        share_percent=message.share_percent,
        text=message.text,
        remaining_episodes=message.estimated_remaining_episodes,
        candidate_successes=message.candidate_successes,
        candidate_failures=message.candidate_failures,
        champion_successes=message.champion_successes,
        champion_failures=message.champion_failures,
        evidence_not_worse=message.log10_evidence_not_worse,
        evidence_worse=message.log10_evidence_worse,
        step_elapsed_s=message.step_elapsed_s,
        planned=message.planned_policy,
        guards=tuple(map(_guard, message.guards)),
        is_watched=message.is_watched,
    )


def _guard(guard: GuardState) -> GuardView:
    return GuardView(
        name=guard.name,
        unit=guard.unit,
        value=None if isnan(guard.value) else guard.value,
        limit=guard.limit,
        samples=guard.samples,
        minimum_samples=guard.minimum_samples,
        alarm=guard.alarm,
    )


def shadow_view(message: ShadowSummary) -> ShadowView:
    """Return the view of a shadow."""
    return ShadowView(
        policy=message.shadow_policy,
        hours=message.hours_in_shadow,
        episodes=message.episodes,
        samples=message.samples,
        divergence=_known(message.divergence_mean),
        cage_trips=message.cage_trips,
        latency_ms_p95=_known(message.latency_ms_p95),
        unmet=message.unmet_requirements,
    )


def _known(value: float) -> float | None:
    """Return a number of a message; None before the first sample."""
    return value if isfinite(value) else None


def robot_view(node: str, message: EdgeState) -> RobotView:
    """Return the view of a robot."""
    return RobotView(
        node=node,
        client_id=message.client_id,
        state=EDGE_NAMES.get(message.state, unknown_name(message.state)),
        rung=RUNG_NAMES.get(message.rung, unknown_name(message.rung)),
        paused=message.paused,
        intervention=INTERVENTION_NAMES.get(
            message.intervention, unknown_name(message.intervention)
        ),
        reason=message.reason,
        server=message.server,
        slot=message.slot,
        policy=message.policy,
        episode_id=message.episode_id,
        task=message.task,
        queue_remaining_s=message.queue_remaining_s,
        action_age_s=message.action_age_s,
        round_trip_ms=message.round_trip_ms,
        stalls=message.stalls,
        cage_trips=message.cage_trips,
    )


def server_view(name: str, status: ServerStatus) -> ServerView:
    """Return the view of a policy server."""
    return ServerView(
        name,
        SERVER_NAMES.get(status.state, unknown_name(status.state)),
        status.text,
        status.policy,
        status.active_sessions,
        SWAP_PHASES.get(status.swap, SwapPhase.UNKNOWN),
        status.swap_text,
    )


def learner_view(node: str, message: LearnerState) -> LearnerView:
    """Return the view of a learner."""
    return LearnerView(
        node=node,
        phase=LEARNER_NAMES.get(message.state, unknown_name(message.state)),
        text=message.text,
        round=message.round,
        parent=message.parent,
        latest=message.latest,
        episodes=message.episodes,
        episodes_new=message.episodes_new,
        episodes_wanted=message.episodes_wanted,
        progress=known_share(message.progress),
        loss=known_loss(message.loss),
        has_diverged=isinf(message.loss),
        remaining_s=known_remaining_s(message.remaining_s),
        dropped=tuple((each.reason, each.count) for each in message.dropped),
    )

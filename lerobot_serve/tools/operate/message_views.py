# SPDX-License-Identifier: Apache-2.0
"""
Convert messages of routers, servers, edges and learners, of ROS or decoded, into what verbs show.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isinf, isnan

from lerobot_serve.contract.records import (
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
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate.fleet_state import (
    CanaryView,
    GuardView,
    ReplicaView,
    RobotView,
    RouterView,
    ShadowView,
    SlotView,
)
from lerobot_serve.tools.operate.learners.learner_state import (
    known_loss,
    known_remaining_s,
    known_share,
    LearnerView,
)
from lerobot_serve.tools.operate.swap.server_view import ServerView


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
        state=SlotState.State.of(slot.state).name,
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
            state=ReplicaState.State.of(each.state).name,
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
        phase=CanaryPhase.of(message.state),
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
        state=EdgeState.State.of(message.state).name,
        rung=EdgeState.Rung.of(message.rung).name,
        paused=message.paused,
        intervention=EdgeState.Intervention.of(message.intervention).name,
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
        ServerStatus.State.of(status.state).name,
        status.text,
        status.policy,
        status.active_sessions,
        ServerStatus.Swap.of(status.swap),
        status.swap_text,
    )


def learner_view(node: str, message: LearnerState) -> LearnerView:
    """Return the view of a learner."""
    return LearnerView(
        node=node,
        phase=LearnerState.State.of(message.state).name,
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

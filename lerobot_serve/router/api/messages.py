# SPDX-License-Identifier: Apache-2.0
"""Messages of the router to operators, and merged replies to clients. Pure functions."""

from __future__ import annotations

from array import array
import contextlib
from typing import Any

from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.opening import SlotOpening
from lerobot_serve.router.shadow.comparator import ShadowComparison, ShadowStatistics
from lerobot_serve.wire import action_range
from lerobot_serve.wire.action_range import ActionRange
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import SessionRefused
from lerobot_serve_interfaces.msg import (
    DropCount,
    Extension,
    RoutingDecision,
    ShadowDivergence,
    ShadowSummary,
)
from lerobot_serve_interfaces.srv import OpenSession

POLICY_LIMIT = 256
TEXT_LIMIT = 1024


def routing_decision(
    placement: Placement,
    *,
    stamp: Any,
    client_id: str,
    episode_id: str,
    policy: str,
    server: str,
) -> RoutingDecision:
    """Return the record of one placement."""
    return RoutingDecision(
        stamp=stamp,
        client_id=client_id,
        episode_id=episode_id,
        routing_key=placement.key,
        bucket=placement.bucket,
        split_percent=placement.split_percent or 0,
        slot=placement.slot,
        policy=policy,
        server=server,
        missing_episode_id=placement.missing_episode_id,
        sticky=placement.sticky,
        moved=placement.moved,
        reason=_why(placement)[:TEXT_LIMIT],
    )


def _why(placement: Placement) -> str:
    if placement.slot == 'prod':
        return 'single slot'
    below = placement.bucket < (placement.split_percent or 0)
    rule = f'bucket {placement.bucket} is {"" if below else "not "}below {placement.split_percent}'
    if placement.missing_episode_id:
        rule = f'no episode id; {rule}'
    return f'{placement.reason}; {rule}' if placement.reason else rule


def merge_replies(opened: dict[str, SlotOpening], observation_topic: str) -> OpenSession.Response:
    """Return one reply that holds in every slot. Raises SessionRefused."""
    replies = {name: each.reply for name, each in opened.items() if each.reply}
    check_same_history(replies)
    first = next(iter(replies.values()))
    first.observation_topic = observation_topic
    first.warnings = [
        *(
            f'slot {name}: {warning}'[:TEXT_LIMIT]
            for name, reply in replies.items()
            for warning in reply.warnings
        ),
        *(f'slot not used: {e.refused}'[:TEXT_LIMIT] for e in opened.values() if e.refused),
    ]
    for reply in replies.values():
        first.chunk_size = min(first.chunk_size, reply.chunk_size)
        first.supports_rtc = first.supports_rtc and reply.supports_rtc
        first.load = max(first.load, reply.load)
        first.predicted_delay_ms = max(first.predicted_delay_ms, reply.predicted_delay_ms)
        first.warmed_up = first.warmed_up and reply.warmed_up
        first.state_class = max(first.state_class, reply.state_class)
    first.extensions = merge_action_ranges(list(replies.values()))
    types = {reply.policy_type for reply in replies.values()}
    first.policy_type = types.pop() if len(types) == 1 else 'mixed'
    first.policy = '|'.join(reply.policy for reply in replies.values())[:POLICY_LIMIT]
    return first


def merge_action_ranges(replies: list[OpenSession.Response]) -> list[Extension]:
    """
    Return the extensions of the first reply, with an action range that covers every slot: a policy
    in another unit is detected in any slot.
    """
    others = [each for each in replies[0].extensions if each.key != action_range.KEY]
    united: ActionRange | None = None
    for reply in replies:
        pairs = [(each.key, bytes(each.value)) for each in reply.extensions]
        # a range that is invalid, or of other actions, is left out
        with contextlib.suppress(ValueError):
            found = action_range.find(pairs)
            united = united.union(found) if united and found else united or found
    if united is None:
        return others
    value = array('B', action_range.encode(united))
    return [*others, Extension(key=action_range.KEY, value=value)]


def check_same_history(replies: dict[str, OpenSession.Response]) -> None:
    """Raise SessionRefused when the slots need different histories."""
    wanted = {n: (r.observation_steps, r.observation_stride_steps) for n, r in replies.items()}
    if len(set(wanted.values())) > 1:
        listed = ', '.join(
            f'slot {name} {steps} observations {stride} apart'
            for name, (steps, stride) in wanted.items()
        )
        raise SessionRefused(
            Refusal.NOT_READY,
            f'slots need different observation histories: {listed}; load '
            'policies with the same history',
        )


def shadow_divergence(
    comparison: ShadowComparison, action_names: tuple[str, ...], stamp: Any
) -> ShadowDivergence:
    """Return the divergence of the shadow for one request."""
    return ShadowDivergence(
        stamp=stamp,
        client_id=comparison.client_id,
        episode_id=comparison.episode_id,
        seq=comparison.seq,
        live_policy=comparison.live_policy,
        shadow_policy=comparison.shadow_policy,
        rows=comparison.rows,
        divergence=comparison.divergence,
        divergence_in_spreads=comparison.divergence_in_spreads,
        action_names=list(action_names),
        divergence_per_action=list(comparison.per_action),
        limits_known=comparison.limits_known,
        cage_would_trip=comparison.cage_would_trip,
        latency_ms=comparison.latency_ms,
    )


def shadow_summary(
    summary: ShadowStatistics, unmet_requirements: str, drops: dict[str, int], stamp: Any
) -> ShadowSummary:
    """Return the statistics of the shadow."""
    return ShadowSummary(
        stamp=stamp,
        shadow_policy=summary.shadow_policy,
        live_policy=summary.live_policy,
        hours_in_shadow=summary.hours,
        episodes=summary.episodes,
        samples=summary.samples,
        divergence_mean=summary.divergence_mean,
        divergence_in_spreads_mean=summary.divergence_in_spreads_mean,
        cage_trips=summary.trips,
        latency_ms_p50=summary.latency_ms_p50,
        latency_ms_p95=summary.latency_ms_p95,
        unmet_requirements=unmet_requirements[:TEXT_LIMIT],
        dropped=[DropCount(reason=reason, count=count) for reason, count in sorted(drops.items())],
    )

# SPDX-License-Identifier: Apache-2.0
"""Build messages of the router for operators. Pure functions."""

from __future__ import annotations

from dataclasses import asdict

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import SINGLE_SLOT
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.shadow.comparator import ShadowComparison
from lerobot_serve.trace.format.records import RecordIds
from lerobot_serve_interfaces.msg import (
    CanaryState,
    DropCount,
    RouterState,
    RoutingDecision,
    ServerStatus,
    ShadowDivergence,
    ShadowSummary,
)

# messages that a router publishes for operators
RouterMessage = (
    CanaryState
    | DiagnosticArray
    | RouterState
    | RoutingDecision
    | ServerStatus
    | ShadowDivergence
    | ShadowSummary
)


def routing_decision(
    ids: RecordIds, placement: Placement, server: str, policy: str, stamp: Time
) -> RoutingDecision:
    """Return the record of one placement."""
    values = asdict(placement)
    values['split_percent'] = placement.split_percent or 0
    values['reason'] = encodable_text(_placement_reason(placement))
    return RoutingDecision(
        stamp=stamp,
        client_id=ids.client_id,
        episode_id=ids.episode_id,
        policy=policy,
        server=server,
        **values,
    )


def _placement_reason(placement: Placement) -> str:
    if placement.slot == SINGLE_SLOT:
        return 'single slot'
    below = placement.bucket < (placement.split_percent or 0)
    rule = f'bucket {placement.bucket} is {"" if below else "not "}below {placement.split_percent}'
    if placement.missing_episode_id:
        rule = f'no episode id; {rule}'
    return f'{placement.reason}; {rule}' if placement.reason else rule


def drop_messages(drops: dict[str, int]) -> list[DropCount]:
    """Return the counts of drops as messages, sorted by reason."""
    return [DropCount(reason=reason, count=count) for reason, count in sorted(drops.items())]


def shadow_divergence(
    comparison: ShadowComparison, action_names: tuple[str, ...], stamp: Time
) -> ShadowDivergence:
    """Return the message of one shadow comparison."""
    values = asdict(comparison)
    # of the trace alone
    del values['session_epoch']
    return ShadowDivergence(
        stamp=stamp,
        action_names=list(action_names),
        divergence_per_action=list(values.pop('per_action')),
        **values,
    )


def shadow_summary(
    summary: ShadowSummary, unmet_requirements: str, drops: dict[str, int], stamp: Time
) -> ShadowSummary:
    """Return the statistics of a comparator with all that the message has beside."""
    summary.stamp, summary.dropped = stamp, drop_messages(drops)
    summary.unmet_requirements = encodable_text(unmet_requirements)
    return summary

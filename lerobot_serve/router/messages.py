"""What the router tells operators, and one reply of two slots for robots. Pure functions."""

from __future__ import annotations

from typing import Any

from lerobot_serve.router.sticky import Placement
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused
from lerobot_serve_interfaces.msg import RoutingDecision
from lerobot_serve_interfaces.srv import OpenSession


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
    below = 'below' if placement.slot == 'a' else 'not below'
    reason = f'bucket {placement.bucket} is {below} {placement.split_percent}'
    return RoutingDecision(
        stamp=stamp,
        client_id=client_id,
        episode_id=episode_id,
        routing_key=placement.key,
        bucket=placement.bucket,
        split_percent=placement.split_percent,
        slot=placement.slot,
        policy=policy,
        server=server,
        degraded=placement.degraded,
        cached=placement.cached,
        reason=f'no episode id; {reason}' if placement.degraded else reason,
    )


def merge_replies(
    a: OpenSession.Response, b: OpenSession.Response, observation_topic: str
) -> OpenSession.Response:
    """Return what holds for both slots. Raises Refused when one request cannot serve both."""
    histories = [(r.observation_steps, r.observation_stride_steps) for r in (a, b)]
    if histories[0] != histories[1]:
        raise Refused(
            Refusal.NOT_READY,
            'the slots want different histories: slot a {} observations {} control steps apart, '
            'slot b {} observations {} apart; put policies of one kind into the slots'.format(
                *histories[0], *histories[1]
            ),
        )
    a.observation_topic = observation_topic
    a.policy = f'{a.policy}|{b.policy}'[:256]
    a.policy_type = a.policy_type if a.policy_type == b.policy_type else 'mixed'
    a.warnings = [f'slot {n}: {w}' for n, reply in (('a', a), ('b', b)) for w in reply.warnings]
    a.chunk_size = min(a.chunk_size, b.chunk_size)
    a.supports_rtc = a.supports_rtc and b.supports_rtc
    a.load, a.predicted_delay_ms = (
        max(a.load, b.load),
        max(a.predicted_delay_ms, b.predicted_delay_ms),
    )
    return a

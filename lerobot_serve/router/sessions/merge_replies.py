# SPDX-License-Identifier: Apache-2.0
"""Merge the OpenSession replies of all slots into one that holds in each. Pure functions."""

from __future__ import annotations

from array import array
import contextlib

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.router.sessions.opening import SlotOpening
from lerobot_serve_interfaces.msg import Extension
from lerobot_serve_interfaces.srv import OpenSession


def merge_replies(opened: dict[str, SlotOpening], observation_topic: str) -> OpenSession.Response:
    """Return one reply that is valid in every slot. Raises SessionRefused."""
    replies = {name: each.reply for name, each in opened.items() if each.reply}
    check_same_history(replies)
    first = next(iter(replies.values()))
    first.observation_topic = observation_topic
    first.warnings = [
        *(
            encodable_text(f'slot {name}: {warning}')
            for name, reply in replies.items()
            for warning in reply.warnings
        ),
        *(encodable_text(f'slot not used: {e.refused}') for e in opened.values() if e.refused),
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
    policies = '|'.join(reply.policy for reply in replies.values())
    first.policy = encodable_text(policies, FINGERPRINT_LIMIT)
    return first


def merge_action_ranges(replies: list[OpenSession.Response]) -> list[Extension]:
    """
    Return the extensions of the first reply, with the union of the action ranges of all slots, so
    that the client detects a policy with another unit in any slot.
    """
    others = [each for each in replies[0].extensions if each.key != action_range.KEY]
    united: ActionRange | None = None
    for reply in replies:
        # an invalid range, or one of other actions, is skipped
        with contextlib.suppress(ValueError):
            found = action_range.find(reply.extensions)
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

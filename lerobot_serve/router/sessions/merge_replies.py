# SPDX-License-Identifier: Apache-2.0
"""Merge the OpenSession replies of all slots into one that holds in each. Pure functions."""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT
from lerobot_serve.contract.records import Extension, OpenSessionResponse
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.router.sessions.opening import SlotOpening


def merge_replies(opened: dict[str, SlotOpening], observation_topic: str) -> OpenSessionResponse:
    """Return one reply that is valid in every slot. Raises SessionRefused."""
    replies = {name: each.reply for name, each in opened.items() if each.reply}
    check_same_history(replies)
    every = list(replies.values())
    types = {reply.policy_type for reply in every}
    return replace(
        every[0],
        observation_topic=observation_topic,
        warnings=(
            *(
                encodable_text(f'slot {name}: {warning}')
                for name, reply in replies.items()
                for warning in reply.warnings
            ),
            *(encodable_text(f'slot not used: {e.refused}') for e in opened.values() if e.refused),
        ),
        chunk_size=min(reply.chunk_size for reply in every),
        supports_rtc=all(reply.supports_rtc for reply in every),
        load=max(reply.load for reply in every),
        predicted_delay_ms=max(reply.predicted_delay_ms for reply in every),
        warmed_up=all(reply.warmed_up for reply in every),
        state_class=max(reply.state_class for reply in every),
        extensions=merge_action_ranges(every),
        policy_type=types.pop() if len(types) == 1 else 'mixed',
        policy=encodable_text('|'.join(reply.policy for reply in every), FINGERPRINT_LIMIT),
    )


def merge_action_ranges(replies: list[OpenSessionResponse]) -> tuple[Extension, ...]:
    """
    Return the extensions of the first reply, with the union of the action ranges of all slots, so
    that the client detects a policy with another unit in any slot.
    """
    others = tuple(each for each in replies[0].extensions if each.key != action_range.KEY)
    united: ActionRange | None = None
    for reply in replies:
        # an invalid range, or one of other actions, is skipped
        with contextlib.suppress(ValueError):
            found = action_range.find(reply.extensions)
            united = united.union(found) if united and found else united or found
    if united is None:
        return others
    return (*others, Extension(action_range.KEY, action_range.encode(united)))


def check_same_history(replies: dict[str, OpenSessionResponse]) -> None:
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

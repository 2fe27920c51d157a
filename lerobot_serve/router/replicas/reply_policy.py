# SPDX-License-Identifier: Apache-2.0
"""
Judge the policy of a reply: a server may replace its policy while requests are under way. Pure.

Status and replies are different topics: a reply of the new policy may come before the status that
names it, one of the old policy after it.
"""

from __future__ import annotations

from enum import auto, Enum


class ReplyPolicy(Enum):
    """What the policy of a reply is for the router."""

    # that of the slot
    SERVED = auto()
    # computed before a swap, for an episode that no other policy drives yet
    REPLACED = auto()
    # computed before a swap, for an episode that another policy drives by now
    STALE = auto()
    # the server declares a swap with this reply, and its status is under way
    NEW = auto()
    # another one than that of the slot
    OTHER = auto()


def judge(
    policy: str,
    *,
    slot: str,
    reported: str,
    replaced: str,
    driving: str,
    before_swap: bool,
    is_declared: bool,
) -> ReplyPolicy:
    """
    Return what the policy of a reply with actions is. Fingerprints are empty when unknown: that of
    the slot, of the newest report of the server, of the server before its last swap, and of the
    last chunk of the episode. `before_swap`: the request was sent before the router knew of the
    last swap; `is_declared`: the reply has POLICY_CHANGED.
    """
    if policy == slot:
        return ReplyPolicy.SERVED
    if before_swap and policy == replaced:
        may_go_on = driving in ('', policy)
        return ReplyPolicy.REPLACED if may_go_on else ReplyPolicy.STALE
    has_swapped = is_declared and policy != reported
    return ReplyPolicy.NEW if has_swapped else ReplyPolicy.OTHER

# SPDX-License-Identifier: Apache-2.0
"""The policy of a reply against what the router knows: every combination, by the reasons."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.router.replicas.reply_policy import judge, ReplyPolicy

OLD, NEW, OTHER = 'p@1', 'p@2', 'q@1'
NAMES = ('', OLD, NEW, OTHER)
BOOLEANS = (False, True)


def known(slot, reported, replaced, driving, before_swap=False, declared=False) -> dict:
    return {
        'slot': slot,
        'reported': reported,
        'replaced': replaced,
        'driving': driving,
        'before_swap': before_swap,
        'is_declared': declared,
    }


@pytest.mark.parametrize('policy', NAMES[1:])
@pytest.mark.parametrize(('before_swap', 'declared'), product(BOOLEANS, BOOLEANS))
def test_every_combination_has_its_reason(policy, before_swap, declared):
    for slot, reported, replaced, driving in product(NAMES, NAMES, NAMES, NAMES):
        found = judge(policy, **known(slot, reported, replaced, driving, before_swap, declared))
        is_late = before_swap and policy == replaced
        assert (found is ReplyPolicy.SERVED) == (policy == slot)
        if policy == slot:
            continue
        # what was computed before a swap changes nothing, and never takes an episode over
        assert (found in (ReplyPolicy.REPLACED, ReplyPolicy.STALE)) == is_late
        assert (found is ReplyPolicy.REPLACED) == (is_late and driving in ('', policy))
        # without the server's word no other policy is taken for a swap
        is_new = declared and policy != reported and not is_late
        assert (found is ReplyPolicy.NEW) == is_new


@pytest.mark.parametrize(
    ('policy', 'given', 'expected'),
    [
        # the chunk comes before the status
        (NEW, known(OLD, OLD, '', OLD, declared=True), ReplyPolicy.NEW),
        # the status comes before the last chunk of the old policy
        (OLD, known(NEW, NEW, OLD, OLD, before_swap=True), ReplyPolicy.REPLACED),
        (OLD, known(NEW, NEW, OLD, '', before_swap=True), ReplyPolicy.REPLACED),
        # the same, for an episode that another replica has answered with the new policy
        (OLD, known(NEW, NEW, OLD, NEW, before_swap=True), ReplyPolicy.STALE),
        # the server swaps back
        (OLD, known(NEW, NEW, OLD, NEW, declared=True), ReplyPolicy.NEW),
        # the first replica of a slot has swapped, as the router knows
        (NEW, known(OLD, NEW, OLD, OLD), ReplyPolicy.OTHER),
        # a server that declares nothing
        (OTHER, known(OLD, OLD, '', OLD), ReplyPolicy.OTHER),
    ],
)
def test_the_cases_of_a_swap(policy, given, expected):
    assert judge(policy, **given) is expected

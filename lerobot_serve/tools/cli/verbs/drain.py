# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve drain`: gives a slot no new episodes."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli.operator_options import (
    EXIT_STATUSES,
    find_router,
    Operator,
    Reason,
    RouterName,
)
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.operate.rule import Rule, SlotVerb
from lerobot_serve.tools.output.report import Report

HELP = 'give a slot of the router no new episodes until `restore`'
EXAMPLE = f'example: lerobot-serve drain b --reason "GPU service"  {EXIT_STATUSES}'
Slot = Annotated[
    str,
    Argument('a or b; prod for a single slot', 'SLOT', names=lambda **_: ['a', 'b', 'prod']),
]


def drain(
    slot: Slot,
    *,
    now: Annotated[
        bool,
        Argument('running episodes leave with their next request instead of at their end'),
    ] = False,
    reason: Reason = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Drain the slot. Raises UserError, ResultUnknown."""
    return run_slot_verb(SlotVerb.DRAIN, slot, reason, router, operator, at_once=now)


def run_slot_verb(
    verb: SlotVerb,
    slot: str,
    reason: str,
    router: str,
    operator: Operator,
    *,
    at_once: bool = False,
) -> Report:
    """Run one command of a router on one slot. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate.fleet_state import RouterView
    from lerobot_serve.tools.operate.names import resolve_slot
    from lerobot_serve.tools.operate.operations import read_settings, run_rule
    from lerobot_serve.tools.operate.rollout.steering import slot_steering_rule

    with operator.client() as client:

        def rule_of(state: RouterView) -> Rule:
            return slot_steering_rule(
                verb,
                resolve_slot(slot, state),
                state,
                lambda: read_settings(client, state.name).plan,
                at_once=at_once,
            )

        before = find_router(client, router)
        found = operator.confirmed(client, before, verb.value, rule_of)
        if isinstance(found, Report):
            return found
        now, rule = found
        return run_rule(
            client, now, rule, verb=verb.value, slot=slot, at_once=at_once, reason=reason
        ).report()


add_arguments, main = verb_of(drain)

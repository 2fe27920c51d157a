# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve drain`: gives a slot no new episodes."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli.operator_options import (
    EXIT_STATUSES,
    Operator,
    Reason,
    RouterName,
)
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.operate.rule import SlotVerb
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
    from lerobot_serve.tools.operate.names import resolve_slot
    from lerobot_serve.tools.operate.operations import read_settings, run_rule
    from lerobot_serve.tools.operate.rollout.steering import slot_steering_rule

    return operator.on_router(
        router,
        verb.value,
        lambda client, state: slot_steering_rule(
            verb,
            resolve_slot(slot, state),
            state,
            lambda: read_settings(client, state.name).plan,
            at_once=at_once,
        ),
        lambda client, now, rule: run_rule(
            client, now, rule, verb=verb.value, slot=slot, at_once=at_once, reason=reason
        ).report(),
    )


add_arguments, main = verb_of(drain)

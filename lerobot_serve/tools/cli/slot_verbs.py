# SPDX-License-Identifier: Apache-2.0
"""The verbs `drain` and `restore`: one command of a router on one slot."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.commands import SlotVerb
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.fleet_state import RouterView
    from lerobot_serve.tools.operate.rule import Rule

SLOTS = ('a', 'b', 'prod')


def add_slot_arguments(parser: argparse.ArgumentParser) -> None:
    slot = parser.add_argument('slot', metavar='SLOT', help='a or b; prod for a single slot')
    operator_options.set_completer(slot, lambda **_: list(SLOTS))
    operator_options.add_reason(parser)
    operator_options.add_options(parser)


def run_slot_verb(options: argparse.Namespace, verb: SlotVerb, *, at_once: bool) -> int:
    """Run the verb; return its exit status. Raises UserError."""

    def operation(client: FleetClient) -> int:
        from lerobot_serve.tools.operate.names import resolve_slot
        from lerobot_serve.tools.operate.operations import read_settings, run_rule
        from lerobot_serve.tools.operate.rollout.steering import slot_steering_rule

        def rule_of(state: RouterView) -> Rule:
            slot = resolve_slot(options.slot, state)
            return slot_steering_rule(
                verb, slot, state, lambda: read_settings(client, state.name).plan, at_once=at_once
            )

        before = operator_options.find_router(client, options)
        found = operator_options.confirmed(options, client, before, verb.value, rule_of)
        if found is None:
            return 0
        now, rule = found
        result = run_rule(
            client,
            now,
            rule,
            verb=verb.value,
            slot=options.slot,
            at_once=at_once,
            reason=options.reason,
        )
        return operator_options.print_result(options, result)

    return operator_options.run(options, operation)

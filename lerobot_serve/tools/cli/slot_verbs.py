# SPDX-License-Identifier: Apache-2.0
"""The verbs `drain` and `restore`: one command of a router on one slot."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.commands import SlotVerb
    from lerobot_serve.tools.operate.fleet_client import FleetClient

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
        from lerobot_serve.tools.operate.operations import checked, read_settings, run_rule
        from lerobot_serve.tools.operate.rollout.steering import slot_steering_rule

        before = operator_options.find_router(client, options)
        slot = resolve_slot(options.slot, before)
        rule = slot_steering_rule(
            verb, slot, before, lambda: read_settings(client, before.name).plan, at_once=at_once
        )
        if not checked(rule):
            return operator_options.nothing_to_do(options, verb.value, before.name, rule.text)
        operator_options.confirm(options, before.name, rule.text, asks=rule.asks)
        result = run_rule(
            client,
            before,
            rule,
            verb=verb.value,
            slot=options.slot,
            at_once=at_once,
            reason=options.reason,
        )
        return operator_options.print_result(options, result)

    return operator_options.run(options, operation)

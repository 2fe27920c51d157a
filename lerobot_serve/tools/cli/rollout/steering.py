# SPDX-License-Identifier: Apache-2.0
"""Steps that are one command of the router: pause, resume, promote, abort, undo, stop."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.fleet_state import RouterView
    from lerobot_serve.tools.operate.rule import Rule


def with_router(
    options: argparse.Namespace, operation: Callable[[FleetClient, RouterView], int]
) -> int:
    """Run an operation on the router of the options. Raises UserError."""

    def run(client: FleetClient) -> int:
        return operation(client, operator_options.find_router(client, options))

    return operator_options.run(options, run)


def steer(options: argparse.Namespace) -> int:
    """Run a step that is one command of the router."""
    from lerobot_serve.tools.operate.commands import Verb
    from lerobot_serve.tools.operate.operations import read_settings, run_rule
    from lerobot_serve.tools.operate.rollout.steering import steered_slot, steering_rule

    def operation(client: FleetClient, before: RouterView) -> int:
        step = Verb(options.step)
        verb, at_once = f'rollout {options.step}', getattr(options, 'now', False)

        def rule_of(state: RouterView) -> Rule:
            return steering_rule(
                step, state, lambda: read_settings(client, state.name).plan, at_once=at_once
            )

        found = operator_options.confirmed(options, client, before, verb, rule_of)
        if found is None:
            return 0
        now, rule = found
        result = run_rule(
            client,
            now,
            rule,
            verb=verb,
            slot=steered_slot(step, now),
            at_once=at_once,
            reason=options.reason,
        )
        return operator_options.print_result(options, result)

    return with_router(options, operation)


def stop(options: argparse.Namespace) -> int:
    """Remove the plan; all new episodes go to slot a."""
    from lerobot_serve.tools.operate.commands import rollout_rule, Verb
    from lerobot_serve.tools.operate.rollout import rollouts

    def rule_of(state: RouterView) -> Rule:
        return rollout_rule(Verb.STOP, state.canary)

    def operation(client: FleetClient, before: RouterView) -> int:
        found = operator_options.confirmed(options, client, before, 'rollout stop', rule_of)
        if found is None:
            return 0
        result = rollouts.stop(client, found[0], options.reason)
        return operator_options.print_result(options, result)

    return with_router(options, operation)

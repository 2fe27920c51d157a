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
    from lerobot_serve.tools.operate.operations import checked, read_settings, run_rule
    from lerobot_serve.tools.operate.rollout.steering import steering_rule

    def operation(client: FleetClient, before: RouterView) -> int:
        step = Verb(options.step)
        verb, at_once = f'rollout {options.step}', getattr(options, 'now', False)
        rule, slot = steering_rule(
            step, before, lambda: read_settings(client, before.name).plan, at_once=at_once
        )
        if not checked(rule):
            return operator_options.nothing_to_do(options, verb, before.name, rule.text)
        operator_options.confirm(options, before.name, rule.text, asks=rule.asks)
        result = run_rule(
            client, before, rule, verb=verb, slot=slot, at_once=at_once, reason=options.reason
        )
        return operator_options.print_result(options, result)

    return with_router(options, operation)


def stop(options: argparse.Namespace) -> int:
    """Remove the plan; all new episodes go to slot a."""
    from lerobot_serve.tools.operate.commands import rollout_rule, Verb
    from lerobot_serve.tools.operate.operations import checked
    from lerobot_serve.tools.operate.rollout import rollouts

    def operation(client: FleetClient, before: RouterView) -> int:
        rule = rollout_rule(Verb.STOP, before.canary)
        if not checked(rule):
            return operator_options.nothing_to_do(options, 'rollout stop', before.name, rule.text)
        operator_options.confirm(options, before.name, rule.text, asks=rule.asks)
        result = rollouts.stop(client, before, options.reason)
        return operator_options.print_result(options, result)

    return with_router(options, operation)

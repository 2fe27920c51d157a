# SPDX-License-Identifier: Apache-2.0
"""Steps that load policies into servers: start, finish, shadow."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import sys
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.rollout.reading import print_shadow
from lerobot_serve.tools.cli.rollout.steering import with_router
from lerobot_serve.tools.output.text import without_controls

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.fleet_state import RouterView
    from lerobot_serve.tools.operate.outcome import Result
    from lerobot_serve.tools.operate.rollout.replica_loading import LoadProgress
    from lerobot_serve.tools.operate.rule import Rule

INTERRUPTED = 130
SHADOW_STATUS, SHADOW_STOP = 'status', 'stop'


def start(options: argparse.Namespace) -> int:
    """Load the candidate if a directory is given, and start the plan."""
    from lerobot_serve.tools.operate.operations import read_settings
    from lerobot_serve.tools.operate.rollout import rollouts
    from lerobot_serve.tools.operate.rollout.replica_loading import POLICY_PATH

    plan = rollouts.parsed_plan(options.plan)

    def operation(client: FleetClient, before: RouterView) -> int:
        def rule_of(state: RouterView) -> Rule:
            return rollouts.start_rule(
                state,
                options.policy,
                plan,
                lambda: read_settings(client, state.name).plan,
                lambda server: client.get_parameters(server, [POLICY_PATH])[POLICY_PATH] or '',
                skips_shadow=options.skip_shadow,
            )

        found = operator_options.confirmed(options, client, before, 'rollout start', rule_of)
        if found is None:
            return 0

        def run(progress: LoadProgress) -> Result:
            return rollouts.start(
                client,
                found[0],
                options.policy,
                plan,
                load_timeout_s=options.load_timeout_s,
                report=report,
                progress=progress,
                reason=options.reason,
                skips_shadow=options.skip_shadow,
            )

        return run_loading(options, run)

    return with_router(options, operation)


def finish(options: argparse.Namespace) -> int:
    """Make the promoted policy the champion on each server of slot a."""
    from lerobot_serve.tools.operate.rollout import rollouts

    def operation(client: FleetClient, before: RouterView) -> int:
        found = operator_options.confirmed(
            options, client, before, 'rollout finish', rollouts.finish_rule
        )
        if found is None:
            return 0

        def run(progress: LoadProgress) -> Result:
            return rollouts.finish(
                client,
                found[0],
                load_timeout_s=options.load_timeout_s,
                report=report,
                progress=progress,
                reason=options.reason,
            )

        return run_loading(options, run)

    return with_router(options, operation)


def shadow(options: argparse.Namespace) -> int:
    """Load a policy into the shadow, unload it, or print what it has shown."""
    from lerobot_serve.errors import WrongCommandLine
    from lerobot_serve.tools.operate.rollout import shadow_loading

    what: str = options.what
    if what == SHADOW_STATUS:
        return print_shadow(options)
    if what != SHADOW_STOP and '/' not in what:
        raise WrongCommandLine(
            f'give the directory of a policy, with a /, {SHADOW_STOP} or {SHADOW_STATUS}, got '
            f'{what!r}'
        )

    def operation(client: FleetClient, before: RouterView) -> int:
        server = shadow_loading.shadow_server(client, before.name)
        text = f'unload {server}' if what == SHADOW_STOP else f'load {what} into {server}'
        operator_options.confirm(options, before.name, f'{text}; no robot moves by it', asks=False)

        def run(progress: LoadProgress) -> Result:
            if what == SHADOW_STOP:
                return shadow_loading.stop_shadow(
                    client,
                    before,
                    load_timeout_s=options.load_timeout_s,
                    report=report,
                    progress=progress,
                    reason=options.reason,
                )
            return shadow_loading.load_shadow(
                client,
                before,
                what,
                load_timeout_s=options.load_timeout_s,
                report=report,
                progress=progress,
                reason=options.reason,
            )

        return run_loading(options, run)

    return with_router(options, operation)


def run_loading(options: argparse.Namespace, run: Callable[[LoadProgress], Result]) -> int:
    """Run a step that loads policies; an interrupt prints what each server serves."""
    from lerobot_serve.tools.operate.rollout.replica_loading import LoadProgress

    progress = LoadProgress()
    try:
        return operator_options.print_result(options, run(progress))
    except KeyboardInterrupt:
        report(f'interrupted. {progress.text}')
        return INTERRUPTED


def report(line: str) -> None:
    """Print one line of progress, which may have texts of the network, to standard error."""
    print(without_controls(f'  {line}'), file=sys.stderr, flush=True)

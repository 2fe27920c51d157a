# SPDX-License-Identifier: Apache-2.0
"""Steps that load policies into servers: start, finish, shadow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
import sys
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.tools.cli.operator_options import (
    find_router,
    LoadTimeout,
    Operator,
    policy_names,
    Reason,
    RouterName,
)
from lerobot_serve.tools.cli.signature import Argument
from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.output.text import without_controls

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.outcome import Result
    from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader


INTERRUPTED, LOAD_TIMEOUT_S = 130, 300.0
SHADOW_STATUS, SHADOW_STOP = 'status', 'stop'


def start(
    policy: Annotated[
        str,
        Argument(
            'name or hash of the policy of slot b, as a check; or a directory, with a /, that the '
            'servers of slot b load (the policy of slot b)',
            'POLICY',
            names=policy_names,
        ),
    ] = '',
    *,
    plan: Annotated[
        str, Argument('SHARE, SHARE:EPISODES or SHARE:EPISODES:SECONDS, with commas', 'STEPS')
    ] = '25,50,100',
    skip_shadow: Annotated[
        bool,
        Argument(
            'begin without the shadow requirements of the router; recorded with your name and '
            '--reason'
        ),
    ] = False,
    load_timeout_s: LoadTimeout = LOAD_TIMEOUT_S,
    reason: Reason = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Give a policy episodes, step by step. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate.operations import read_settings
    from lerobot_serve.tools.operate.rollout import rollouts
    from lerobot_serve.tools.operate.rollout.replica_loading import POLICY_PATH

    steps = rollouts.parsed_plan(plan)
    return operator.on_router(
        router,
        'rollout start',
        lambda client, state: rollouts.start_rule(
            state,
            policy,
            steps,
            lambda: read_settings(client, state.name).plan,
            lambda server: client.get_parameters(server, [POLICY_PATH])[POLICY_PATH] or '',
            skips_shadow=skip_shadow,
        ),
        lambda client, now, _: run_loading(
            client,
            load_timeout_s,
            lambda loader: rollouts.start(
                loader, now, policy, steps, reason=reason, skips_shadow=skip_shadow
            ),
        ),
    )


def finish(
    *,
    load_timeout_s: LoadTimeout = LOAD_TIMEOUT_S,
    reason: Reason = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Load the promoted policy into slot a, as champion. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate.rollout import rollouts

    return operator.on_router(
        router,
        'rollout finish',
        lambda _, state: rollouts.finish_rule(state),
        lambda client, now, _: run_loading(
            client, load_timeout_s, lambda loader: rollouts.finish(loader, now, reason=reason)
        ),
    )


def shadow(
    what: Annotated[
        str,
        Argument(
            'directory of a policy, with a /, that the shadow loads; stop unloads it; status '
            'prints what it has shown',
            'DIRECTORY|stop|status',
        ),
    ] = SHADOW_STATUS,
    *,
    load_timeout_s: LoadTimeout = LOAD_TIMEOUT_S,
    reason: Reason = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Load a policy into the shadow. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate.rollout import shadow_loading

    if what not in (SHADOW_STATUS, SHADOW_STOP) and '/' not in what:
        raise WrongCommandLine(
            f'give the directory of a policy, with a /, {SHADOW_STOP} or {SHADOW_STATUS}, got '
            f'{what!r}'
        )
    with operator.client() as client:
        before = find_router(client, router)
        server = shadow_loading.shadow_server(client, before.name)
        if what == SHADOW_STATUS:
            return _shadow_status(client, before.name, server)
        is_stop = what == SHADOW_STOP
        text = f'unload {server}' if is_stop else f'load {what} into {server}'
        operator.confirm(before.name, f'{text}; no robot moves by it', asks=False)
        return run_loading(
            client,
            load_timeout_s,
            lambda loader: shadow_loading.stop_shadow(loader, before, reason=reason)
            if is_stop
            else shadow_loading.load_shadow(loader, before, what, reason=reason),
        )


def _shadow_status(client: FleetClient, router: str, server: str) -> Report:
    from lerobot_serve.tools.operate.rollout import rollout_view

    found = client.shadow(router)
    if found is None:
        raise UserError(f'{router} publishes no comparison with its shadow {server} yet')
    return Report(
        {'server': server, **asdict(found)}, [f'{server}:', *rollout_view.shadow_lines(found)]
    )


def run_loading(
    client: FleetClient, load_timeout_s: float, begin: Callable[[ServerLoader], Result]
) -> Report:
    """Run a step that loads policies; an interrupt prints what each server serves."""
    from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader

    loader = ServerLoader(client, load_timeout_s, show)
    try:
        return begin(loader).report()
    except KeyboardInterrupt:
        text = f'interrupted. {loader.progress.text}'
        show(text)
        return Report({'error': text, 'exit_status': INTERRUPTED}, [], INTERRUPTED)


def show(line: str) -> None:
    """Print one line of progress, which may have texts of the network, to standard error."""
    print(without_controls(f'  {line}'), file=sys.stderr, flush=True)

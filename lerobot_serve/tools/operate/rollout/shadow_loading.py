# SPDX-License-Identifier: Apache-2.0
"""
Load a policy into the shadow of a router, and unload it: the step before a canary.

The shadow drives no robot, so that nothing is asked. The caller's thread. Each raises UserError,
and ResultUnknown for a step that was sent and not confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_serve.contract.names import full_name
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.operate.operations import signed
from lerobot_serve.tools.operate.outcome import NotReached, Result, ResultUnknown
from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

SHADOW_SERVER = 'shadow_server'


def shadow_server(client: FleetClient, router: str) -> str:
    """Return the full name of the shadow of a router. Raises UserError when it has none."""
    found = client.get_parameters(router, [SHADOW_SERVER]).get(SHADOW_SERVER)
    if not found:
        raise UserError(
            f'{router} has no shadow: start it with the parameter {SHADOW_SERVER}, or add a '
            'server with `slot: shadow` to the fleet file. Nothing was changed'
        )
    return full_name(router.rpartition('/')[0] or '/', found)


def load_shadow(
    loader: ServerLoader, router: RouterView, folder: str, *, reason: str = ''
) -> Result:
    """Load a directory into the shadow."""
    client, server = loader.client, shadow_server(loader.client, router.name)
    _check_runs(loader, server, folder)
    values = {'policy_path': folder, 'policy_name': ''}
    found = loader.progress.run(lambda: loader.load(server, values))
    noted = _note(client, router.name, f'loads {folder} into the shadow', reason)
    text = (
        f'{server} serves {found} in shadow: it gets copies of requests from now on and drives no '
        'robot; `lerobot-serve rollout shadow` shows the comparison'
        f'{noted}'
    )
    return Result('rollout shadow', router.name, text, client.operator)


def stop_shadow(loader: ServerLoader, router: RouterView, *, reason: str = '') -> Result:
    """Unload the policy of the shadow; its server runs on without one."""
    client, server = loader.client, shadow_server(loader.client, router.name)
    loader.progress.run(lambda: loader.unload(server))
    noted = _note(client, router.name, 'unloads the shadow', reason)
    text = f'{server} is unloaded; what it has shown is kept{noted}'
    return Result('rollout shadow', router.name, text, client.operator)


def _check_runs(loader: ServerLoader, server: str, folder: str) -> None:
    try:
        loader.check(server, folder)
    except NotReached as error:
        raise UserError(
            f'{server}, the shadow, does not run: {error}. Start it first. Nothing was changed'
        ) from error


def _note(client: FleetClient, router: str, what: str, reason: str) -> str:
    """
    Record in the trace of the router who did it; what was done stays done without. Return why it
    is not recorded, empty when it is.
    """
    text = f'{what}: {reason}' if reason else what
    try:
        done, reply = client.control_slot(router, 'NOTE', reason=signed(client.operator, text))
    except (UserError, ResultUnknown) as error:
        done, reply = False, str(error)
    return '' if done else f'. {router} has not recorded it: {reply}'

# SPDX-License-Identifier: Apache-2.0
"""
Let a server swap its policy, and wait for the end; `swap_rule` says what that does in each state
of a server. The caller's thread.

Raises UserError when nothing was changed, ResultUnknown when it was sent and its end is not known.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import TYPE_CHECKING

from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.names import nearest_name
from lerobot_serve.tools.operate.outcome import NotReached, Result, ResultUnknown
from lerobot_serve.tools.operate.rule import Effect, filled, refuse, Rule

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

POLL_S = 0.2
BEGIN = Rule(
    Effect.DO,
    'load {given} beside {policy} and let it replace that policy under {sessions}: their next '
    'chunk is of the new policy and says so',
    asks=True,
)
LOADS = refuse('{name} is {swap_text}; wait for its end')
NOT_ACTIVE = refuse(
    '{name} is {state} and serves nothing ({text}): activate it; to change a policy that is not '
    'served set policy_path. Nothing was changed'
)


def swap_rule(server: ServerStatus, given: str) -> Rule:
    """Return what a swap to the folder or version `given` does, with its text filled in."""
    if server.state is not ServerStatus.State.ACTIVE:
        rule = NOT_ACTIVE
    else:
        rule = LOADS if server.swap is ServerStatus.Swap.LOADING else BEGIN
    count = server.active_sessions
    return filled(
        rule,
        name=server.server,
        given=given,
        policy=server.policy,
        sessions=f'{count} open session{"" if count == 1 else "s"}',
        state=server.state.name,
        text=server.text or 'no text',
        swap_text=server.swap_text,
    )


def find_server(client: FleetClient, given: str) -> ServerStatus:
    """Return the state of a server of a full name. Raises UserError."""
    name = f'/{node_name(given).strip("/")}'
    try:
        return client.server(name)
    except NotReached as error:
        known = client.swap_servers()
        near = nearest_name(name, known)
        hint = f'did you mean {near}? ' if near else ''
        listed = ', '.join(known) or 'none'
        raise NotReached(f'{error}. {hint}Policy servers that are found: {listed}') from error


def swap(
    client: FleetClient, server: ServerStatus, given: str, *, wait_s: float | None = None
) -> Result:
    """Begin a swap; with `wait_s`, return when it has ended."""
    name = server.server
    accepted, text = client.swap_policy(name, given)
    if not accepted:
        raise UserError(f'{name} {text}. Nothing was changed')
    if wait_s is None:
        return Result('swap', name, text, client.operator)
    after = _ended(lambda: client.server(name), wait_s)
    if after is None:
        raise ResultUnknown(
            f'UNKNOWN: {name} accepted the swap ({text}) and has not ended it within '
            f'{wait_s:g} s. It continues: read ServerStatus.swap_text of {name}/status, or '
            'wait longer with --load-timeout-s'
        )
    before, now = server.policy, after
    if now.swap is not ServerStatus.Swap.DONE:
        raise UserError(f'{name}: {now.swap_text or now.text}')
    return Result(
        'swap',
        name,
        now.swap_text,
        client.operator,
        [f'policy: {before} -> {now.policy}'] if now.policy != before else [],
    )


def _ended(read: Callable[[], ServerStatus], limit_s: float) -> ServerStatus | None:
    """Return the state in which no policy is loaded any more; None when it lasts too long."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            if (now := read()).swap is not ServerStatus.Swap.LOADING:
                return now
        except (NotReached, ResultUnknown):
            # a busy server; it is asked again until the time is over
            pass
        if time.monotonic() >= deadline_s:
            return None
        time.sleep(POLL_S)

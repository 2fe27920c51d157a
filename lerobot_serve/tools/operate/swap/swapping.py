# SPDX-License-Identifier: Apache-2.0
"""
Let a server swap its policy, and wait for the end. The caller's thread.

Raises UserError when nothing was changed, ResultUnknown when it was sent and its end is not known.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import TYPE_CHECKING

from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.fleet_state import ServerView
from lerobot_serve.tools.operate.names import nearest_name
from lerobot_serve.tools.operate.outcome import NotReached, Result, ResultUnknown

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

POLL_S = 0.2


def find_server(client: FleetClient, given: str) -> ServerView:
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
    client: FleetClient, server: ServerView, given: str, *, wait_s: float | None = None
) -> Result:
    """Begin a swap; with `wait_s`, return when it has ended."""
    accepted, text = client.swap_policy(server.name, given)
    if not accepted:
        raise UserError(f'{server.name} {text}. Nothing was changed')
    if wait_s is None:
        return Result('swap', server.name, text, client.operator)
    after = _ended(lambda: client.server(server.name), wait_s)
    if after is None:
        raise ResultUnknown(
            f'UNKNOWN: {server.name} accepted the swap ({text}) and has not ended it within '
            f'{wait_s:g} s. It goes on: read ServerStatus.swap_text of {server.name}/status, or '
            'wait longer with --load-timeout-s'
        )
    before, now = server.status.policy, after.status
    if now.swap is not ServerStatus.Swap.DONE:
        raise UserError(f'{server.name}: {now.swap_text or now.text}')
    return Result(
        'swap',
        server.name,
        now.swap_text,
        client.operator,
        [f'policy: {before} -> {now.policy}'] if now.policy != before else [],
    )


def _ended(read: Callable[[], ServerView], limit_s: float) -> ServerView | None:
    """Return the state in which no policy is loaded any more; None when it lasts too long."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            if (now := read()).status.swap is not ServerStatus.Swap.LOADING:
                return now
        except (NotReached, ResultUnknown):
            # a busy server; it is asked again until the time is over
            pass
        if time.monotonic() >= deadline_s:
            return None
        time.sleep(POLL_S)

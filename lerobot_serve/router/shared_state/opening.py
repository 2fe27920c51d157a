# SPDX-License-Identifier: Apache-2.0
"""Open the state of a router: a file of its own, or the one that the routers of a site share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
import uuid

from lerobot_serve.requirements import install_command
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.shared_state.address import state_address
from lerobot_serve.router.storage.state_store import StateStore, StoreAway, StoreRefused
from lerobot_serve.router.storage.store import Store

if TYPE_CHECKING:
    from lerobot_serve.router.shared_state.follower import StateFollower
    from lerobot_serve.router.shared_state.postgres_store import PostgresStore

WAITS = 'this router waits for it, and routes nothing: it cannot know what is barred'
RETRY_S = 0.5
INSTALL = f'state_url needs psycopg: {install_command("psycopg")} psycopg-binary'


def open_state(
    parameters: RouterParameters, folder: Path, context: NodeContext
) -> tuple[StateStore, StateFollower | None]:
    """
    Open the store, and what follows it where others write it. One that is away is waited for, as
    long as the context waits. Raises StoreRefused and ParameterError.
    """
    address = state_address(parameters.state_url, parameters.state_site)
    capacity, when = parameters.max_remembered_placements, context.local_time()
    if address is None:
        return Store(folder, capacity, when), None
    try:
        # only here: a router with a file needs no psycopg
        from lerobot_serve.router.shared_state.follower import StateFollower
        from lerobot_serve.router.shared_state.postgres_store import PostgresStore
    except ImportError as error:
        raise StoreRefused(f'{INSTALL} ({error})') from error
    make = partial(PostgresStore, address, uuid.uuid4().hex, context.name, capacity, when)
    store = _when_there(make, context)
    return store, StateFollower(store, capacity, context.log_warning, context.log_info)


def _when_there(make: Callable[[], PostgresStore], context: NodeContext) -> PostgresStore:
    """Return the store as soon as its server is there. Raises StoreRefused."""
    while True:
        try:
            return make()
        except StoreAway as error:
            if context.wait(f'{error}; {WAITS}', RETRY_S):
                raise

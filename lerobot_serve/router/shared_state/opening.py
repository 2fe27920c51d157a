# SPDX-License-Identifier: Apache-2.0
"""Open the state of a router: a file of its own, or the one that the routers of a site share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
import json
from pathlib import Path
from typing import TYPE_CHECKING
import uuid

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.requirements import install_command
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.shared_state.handover import (
    ASK,
    decided,
    describe,
    imported,
    LAST,
    lost_decisions,
    NONE,
)
from lerobot_serve.router.storage.address import state_address, StateAddress
from lerobot_serve.router.storage.records import Batch
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore
from lerobot_serve.router.storage.store import Store, StoreAway, StoreRefused
from lerobot_serve.state_folder import FolderLock

if TYPE_CHECKING:
    from lerobot_serve.router.storage.follower import StateFollower

WAITS = 'this router waits for it, and routes nothing: it cannot know what is barred'
CHOICES = (
    'correct state_url or state_site, or start once with state_import: last (its decisions come '
    'along) or none (they do not)'
)
LAST_STATE = 'router_state.json'
RETRY_S = 0.5
INSTALL = f'state_url needs psycopg: {install_command("psycopg")} psycopg-binary'


def open_state(
    parameters: RouterParameters, folder: Path, context: NodeContext
) -> tuple[Store, StateFollower | None]:
    """
    Lock the folder, and open the store, and what follows it where others write it. One that is
    away is waited for, as long as the context waits. Raises StoreRefused, ParameterError, and
    UserError if another node owns the folder.
    """
    lock = FolderLock(folder, context.name, 'state_folder')
    try:
        store = _Opener(parameters, folder, context).run()
    except BaseException:
        lock.release()
        raise
    if lock.fault:
        context.log_warning(lock.fault)
    store.lock = lock
    if not store.is_shared:
        return store, None
    # only here: a router with a file needs no psycopg
    from lerobot_serve.router.storage.follower import StateFollower
    from lerobot_serve.router.storage.postgres_store import PostgresStore

    assert isinstance(store, PostgresStore)
    capacity = parameters.max_remembered_placements
    return store, StateFollower(store, capacity, context.log_warning, context.log_info)


def move_state(
    parameters: RouterParameters, folder: Path, context: NodeContext
) -> tuple[str, Store]:
    """
    Copy what a stopped router has decided into the state that `parameters` name, which is its own
    from then on. Return the name of the last state, which stays as it is, and the new one, closed.
    Raises as `open_state`.
    """
    last, name = last_address(folder), _name_of_last(folder)
    if last is None and not (folder / FILE).exists():
        raise StoreRefused(
            f'no router has a state in {folder}: give its state_folder, or its name and namespace'
        )
    if last == state_address(parameters.state_url, parameters.state_site):
        raise StoreRefused(
            f'{name} is what this router used last: name another state_url or state_site, or none '
            'to go back to its file'
        )
    store, _ = open_state(replace(parameters, state_import=LAST), folder, context)
    store.close()
    return name, store


class _Opener:
    """Opens the states of one router."""

    def __init__(self, parameters: RouterParameters, folder: Path, context: NodeContext) -> None:
        self._parameters, self._folder, self._context = parameters, folder, context
        self._run = uuid.uuid4().hex

    def run(self) -> Store:
        """Open the state, with what comes along from the last one. Raises StoreRefused."""
        parameters = self._parameters
        address = state_address(parameters.state_url, parameters.state_site)
        store = self._open(address)
        try:
            if address != (last := last_address(self._folder)):
                store = self._take_over(store, address, last)
            elif parameters.state_import != ASK:
                self._context.log_warning(
                    f'state_import is {parameters.state_import}, and this router used {store.name}'
                    ' before: remove it, so that the next change of the state is asked for'
                )
        except BaseException:
            store.close()
            raise
        remember_address(self._folder, address)
        return store

    def _open(self, address: StateAddress | None, *, waits: bool = True) -> Store:
        """Return the store of an address; None is that of the folder. Raises StoreRefused."""
        context, when = self._context, self._context.local_time()
        capacity = self._parameters.max_remembered_placements
        if address is None:
            return SqliteStore(self._folder, capacity, when)
        try:
            from lerobot_serve.router.storage.postgres_store import PostgresStore
        except ImportError as error:
            raise StoreRefused(f'{INSTALL} ({error})') from error
        while True:
            try:
                return PostgresStore(address, self._run, context.name, capacity, when)
            except StoreAway as error:
                if not waits or context.wait(f'{error}; {WAITS}', RETRY_S):
                    raise

    def _take_over(
        self, store: Store, address: StateAddress | None, last: StateAddress | None
    ) -> Store:
        """
        Return the store with what comes along from the last state (see handover). Raises
        StoreRefused.
        """
        warn, choice = self._context.log_warning, self._parameters.state_import
        if last is None and not (self._folder / FILE).exists():
            self._warn_of_other_sites(store)
            return store
        name = _name_of_last(self._folder)
        if choice == NONE:
            warn(f'what was decided in {name} does not hold in {store.name}: state_import is none')
            return store
        before = self._open_last(last, name)
        before.close()
        lost = lost_decisions(before.content.decisions, store.content.decisions)
        is_new = last is None and not decided(store.content.decisions)
        if not (lost or is_new):
            return store
        if not is_new and choice != LAST:
            raise StoreRefused(
                f'this router used {name} last, and {store.name} lacks what was decided there '
                f'({describe(lost)}); {CHOICES}'
            )
        self._write(store, imported(before.content, store))
        if lost:
            warn(f'{store.name} has the decisions of {name} from now on: {describe(lost)}')
        store.close()
        return self._open(address)

    def _open_last(self, last: StateAddress | None, name: str) -> Store:
        try:
            return self._open(last, waits=False)
        except StoreRefused as error:
            raise StoreRefused(
                f'this router used {name} last, and what was decided there is not known: {error}; '
                f'{CHOICES}'
            ) from error

    @staticmethod
    def _write(store: Store, batches: Iterable[Batch]) -> None:
        """Write what comes along. Raises StoreRefused."""
        try:
            for batch in batches:
                if batch:
                    store.write(batch)
        except OSError as error:
            raise StoreRefused(f'{store.name} cannot be written: {error}; repair it') from error

    def _warn_of_other_sites(self, store: Store) -> None:
        sites = getattr(store, 'other_sites', ())
        if sites and not decided(store.content.decisions):
            self._context.log_warning(
                f'{store.name} has no decisions yet, and the database has other sites '
                f'({", ".join(sites)}): correct state_site if this router belongs to one of them'
            )


def last_address(folder: Path) -> StateAddress | None:
    """
    Return the shared state that the router of a folder used last; None for its file. Raises
    StoreRefused.
    """
    file = folder / LAST_STATE
    try:
        found = json.loads(file.read_text())
        return StateAddress(str(found['state_url']), str(found['state_site']))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreRefused(
            f'{file} cannot be read ({error!r}); it names the state_url and state_site that this '
            'router used last: write them again, or remove it if that was router.sqlite'
        ) from error


def _name_of_last(folder: Path) -> str:
    """Return what texts call the state that the router of a folder used last."""
    last = last_address(folder)
    return last.name if last else str(folder / FILE)


def remember_address(folder: Path, address: StateAddress | None) -> None:
    """Note which state a router uses. Raises StoreRefused."""
    file = folder / LAST_STATE
    try:
        if last_address(folder) == address:
            return
        if address is None:
            file.unlink()
            return
        text = json.dumps({'state_url': address.url, 'state_site': address.site})
        with replacement_of(file, durable=True) as part:
            part.write_text(f'{text}\n')
    except OSError as error:
        raise StoreRefused(f'{file} cannot be written: {error}; repair the folder') from error

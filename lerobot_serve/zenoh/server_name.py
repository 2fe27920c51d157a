# SPDX-License-Identifier: Apache-2.0
"""
The name of a server on the link: one process at a time has it.

Each process with the name shows a token of its own. A server that finds the token of another one
refuses to start. Two that find each other later, because their link came up later, both report it;
a client that sees both uses neither: each of them would get and answer its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
import threading
import time

import zenoh

from lerobot_serve.contract.names import file_name
from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.keys import ANY, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import LEASE_MS

# for nodes that listen already; what comes later is noticed by ServerInstances
CONNECT_TIMEOUT_S = 1.0
# a server that hangs keeps its token for the lease
RELEASE_TIMEOUT_S = LEASE_MS / 1e3 + 1.0
LOOKUP_TIMEOUT_S, POLL_S = 0.5, 0.05
SHOWN_PROCESSES = 4
# of one name that are held: two are enough for a conflict
PROCESSES_LIMIT = 1024


class ServerInstances:
    """
    Watches which processes have the name of a server. A thread of Zenoh calls `on_conflict` with
    the reason and the remedy when the name becomes ambiguous, and with '' when it no longer is.
    """

    def __init__(
        self, link: ZenohLink, keys: ServerKeys, on_conflict: Callable[[str], None]
    ) -> None:
        self._keys, self._on_conflict = keys, on_conflict
        self._found: set[str] = set()
        self._conflict = ''
        # each peer has a thread of its own
        self._lock = threading.Lock()
        self._watch = link.watch_alive(keys.instance(ANY), self._on_token)

    def _on_token(self, key: str, is_alive: bool) -> None:
        with self._lock:
            if is_alive and len(self._found) >= PROCESSES_LIMIT:
                return
            (self._found.add if is_alive else self._found.discard)(process_of(key))
            before, self._conflict = self._conflict, conflict_text(self._keys, self._found)
            if self._conflict != before:
                self._on_conflict(self._conflict)

    def close(self) -> None:
        """Stop to watch."""
        self._watch.undeclare()


class ServerName:
    """The name of this server. The thread that builds the node; any thread reads `conflict`."""

    def __init__(self, link: ZenohLink, keys: ServerKeys) -> None:
        self._link, self._keys = link, keys
        self._instances: ServerInstances | None = None
        self._token: zenoh.LivelinessToken | None = None
        # that another server has this name, with the remedy; empty otherwise
        self.conflict = ''

    def claim(self, log_warning: Callable[[str], None]) -> None:
        """
        Take the name, once no other process has it; a thread of Zenoh logs it when another one
        appears later. Raises UserError when another process has it for RELEASE_TIMEOUT_S.
        """
        check_name_is_free(self._link, self._keys)

        def report(conflict: str) -> None:
            self.conflict = conflict
            log_warning(conflict or f'no other server has the name {self._keys.server} now')

        self._token = self._link.declare_alive(self._keys.instance(self._link.process))
        self._instances = ServerInstances(self._link, self._keys, report)

    def close(self) -> None:
        """Give the name up. May be called twice."""
        instances, self._instances = self._instances, None
        token, self._token = self._token, None
        if instances and token:
            instances.close()
            token.undeclare()


def check_name_is_free(link: ZenohLink, keys: ServerKeys) -> None:
    """
    Wait until no process has the name of a server. Raises UserError after RELEASE_TIMEOUT_S.
    """
    _wait_for_connection(link)
    deadline_s = time.monotonic() + RELEASE_TIMEOUT_S
    while holders := link.tokens(keys.instance(ANY), LOOKUP_TIMEOUT_S):
        if time.monotonic() > deadline_s:
            raise UserError(
                f'another server has the name {keys.server} in zenoh_site {keys.site!r} '
                f'({shown_processes(map(process_of, holders))}), found through {link.endpoints}; '
                'stop it, or start this one with another name (-r __ns:=/NAME) or zenoh_site'
            )
        time.sleep(POLL_S)


def _wait_for_connection(link: ZenohLink) -> None:
    """Wait for the nodes in `zenoh_connect`; none has to be there."""
    deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
    while not link.is_connected() and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def conflict_text(keys: ServerKeys, processes: set[str]) -> str:
    """Return why a name is ambiguous, with the remedy; empty for one process."""
    if len(processes) < 2:
        return ''
    return (
        f'{len(processes)} servers have the name {keys.server} in zenoh_site {keys.site!r} '
        f'({shown_processes(processes)}); robots and routers use none of them: stop all but one, '
        'or give each its own name or zenoh_site'
    )


def process_of(key: str) -> str:
    """Return the process of a key of ServerKeys.instance."""
    return key.rpartition('/')[2]


def shown_processes(processes: Iterable[str]) -> str:
    """Return hosts and process ids for a text; a name may come from anywhere."""
    shown = sorted(file_name(process).rpartition('.')[0] or '?' for process in processes)
    return 'HOST.PID: ' + ', '.join(shown[:SHOWN_PROCESSES])

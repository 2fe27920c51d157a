# SPDX-License-Identifier: Apache-2.0
"""
The clients of the door by their connection, bounded in number. The event loop owns it.

A client never says that it leaves: one without a call for `LEFT_AFTER_S` makes room for another.
A RobotClient that runs has a GetActions open all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
import time

from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.lerobot_async.client import RobotClient

LEFT_AFTER_S = 30.0
NO_INSTRUCTIONS = (
    'no SendPolicyInstructions came over this connection; the gateway or the network was '
    'interrupted: restart the robot client'
)


@dataclass(slots=True)
class Entry:
    client: RobotClient
    running: int
    used_s: float


class Clients:
    """See the module."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._entries: dict[Caller, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, client: RobotClient) -> None:
        """Keep a client, in the place of the same caller's. Raises PredictionError."""
        if client.caller not in self._entries and len(self._entries) >= self._limit:
            self._make_room()
        self._entries[client.caller] = Entry(client, 0, self._clock())

    def _make_room(self) -> None:
        entries = self._entries
        caller = min(entries, key=lambda each: (entries[each].running, entries[each].used_s))
        if entries[caller].running or self._clock() - entries[caller].used_s < LEFT_AFTER_S:
            raise PredictionError(
                Status.OVERLOADED,
                f'{len(entries)} robot clients are connected, max_callers is {self._limit}; '
                'retry when one has left, or raise max_callers',
                retry_after_s=1.0,
            )
        del entries[caller]

    def forget(self, caller: Caller) -> None:
        """Remove a client that begins anew; no error without one."""
        self._entries.pop(caller, None)

    @contextlib.contextmanager
    def calling(self, caller: Caller) -> Iterator[RobotClient]:
        """Return the client of a call, for the time of the call. Raises PredictionError."""
        entry = self._entries.get(caller)
        if entry is None:
            raise PredictionError(Status.INVALID, NO_INSTRUCTIONS)
        entry.running += 1
        try:
            yield entry.client
        finally:
            entry.running -= 1
            entry.used_s = self._clock()

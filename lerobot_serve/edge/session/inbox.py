# SPDX-License-Identifier: Apache-2.0
"""
The inbox of the request thread: deposits of other threads, and waiting.

Callbacks deposit and return. The request thread waits only here, so that tests replace time in one
place.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import queue
import threading

from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed


class Inbox:
    """Any thread deposits; the request thread takes and sleeps."""

    def __init__(self, client_id: str, clock: Callable[[], int]) -> None:
        self.client_id, self.clock = client_id, clock
        # None: a wake-up
        self._items: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()

    # any thread

    def put_reply(self, raw: bytes) -> None:
        """Deposit a reply with its time of arrival."""
        self._put((raw, self.clock()))

    def put_no_session(self, raw: bytes) -> None:
        """Deposit a server's notice of an unknown session, unless it is for another client."""
        with contextlib.suppress(Malformed):
            if read_envelope(raw).client_id != self.client_id:
                return
        # a malformed notice is counted like any reply
        self.put_reply(raw)

    def wake(self) -> None:
        """End the current `take`."""
        self._put(None)

    def stop(self) -> None:
        """Set `is_stopped` and end the current wait."""
        self._stopped.set()
        self.wake()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    # the request thread

    def take(self, wait_s: float) -> tuple[bytes, int] | None:
        """Wait for a reply; return it and its arrival, None after a wake-up or `wait_s`."""
        try:
            return self._items.get(timeout=wait_s)
        except queue.Empty:
            return None

    def sleep(self, seconds: float) -> None:
        """Wait regardless of deposits, until `stop`."""
        self._stopped.wait(seconds)

    def _put(self, item: tuple[bytes, int] | None) -> None:
        self._items.put(item)

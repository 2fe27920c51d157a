# SPDX-License-Identifier: Apache-2.0
"""
Send to one peer in a thread of its own: its full link holds up no message to another peer.

Any thread sends. The thread starts with the first message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
import threading
import time

import zenoh

from lerobot_serve.zenoh.settings import LEASE_MS

Payload = bytes | zenoh.ZBytes
# reason of the drop counters
LINK_FULL = 'link_full'
# after its lease a peer that takes nothing is gone
LIFESPAN_S = LEASE_MS / 1e3
CLOSE_LIMIT_S = 0.5


class LinkSender:
    """
    At most `limit` messages wait, each for at most `lifespan_s`; those that do not fit, the oldest
    first, are passed to `on_drop` with LINK_FULL.
    """

    def __init__(
        self,
        put: Callable[[Payload], None],
        on_drop: Callable[[str], None],
        *,
        limit: int,
        lifespan_s: float = LIFESPAN_S,
    ) -> None:
        """`put` may wait for the link."""
        self._put, self._on_drop = put, on_drop
        self._limit, self._lifespan_s = limit, lifespan_s
        # with the time of arrival
        self._waiting: deque[tuple[float, Payload]] = deque()
        self._changed = threading.Condition()
        self._is_sending = self._is_closed = False
        self._end: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def send(self, raw: Payload) -> None:
        """Queue a message; never waits for the link."""
        with self._changed:
            is_refused = self._is_closed
            if not is_refused:
                is_refused = len(self._waiting) >= self._limit
                if is_refused:
                    self._waiting.popleft()
                self._waiting.append((time.monotonic(), raw))
                self._start()
                self._changed.notify()
        if is_refused:
            self._on_drop(LINK_FULL)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name='link_sender', daemon=True)
            self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits or is being sent."""
        with self._changed:
            return not (self._waiting or self._is_sending)

    def close(self, end: Callable[[], None]) -> None:
        """
        Discard and count what waits. The thread that sends calls `end` once it sends no more; a
        put that waits for a full link ends with the link.
        """
        with self._changed:
            self._is_closed, self._end = True, end
            lost = len(self._waiting)
            self._waiting.clear()
            self._changed.notify()
            thread = self._thread
        for _ in range(lost):
            self._on_drop(LINK_FULL)
        if thread:
            thread.join(CLOSE_LIMIT_S)
        else:
            end()

    def _run(self) -> None:
        while (raw := self._take()) is not None:
            try:
                self._put(raw)
            except zenoh.ZError:
                # the link has closed
                self._on_drop(LINK_FULL)
        # the link may have closed meanwhile, and what it declared with it
        with contextlib.suppress(zenoh.ZError):
            self._end()

    def _take(self) -> Payload | None:
        """Wait for a message that is not too old; None after `close`."""
        with self._changed:
            self._is_sending = False
            while not self._is_closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                arrived_s, raw = self._waiting.popleft()
                if time.monotonic() - arrived_s <= self._lifespan_s:
                    self._is_sending = True
                    return raw
                self._on_drop(LINK_FULL)
            return None

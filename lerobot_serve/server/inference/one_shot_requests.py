"""Requests of callers without a session, one observation and one chunk each. Executor thread."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
import time

from lerobot_serve.server.assembly import not_ready_chunk
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.messages import ServerState
from lerobot_serve.wire.chunk import Chunk


class OneShotRequests:
    """Queues them at whatever is served now; `standing` says why nothing is."""

    def __init__(
        self, serving: Callable[[], ServerCore | None], standing: Callable[[], ServerState]
    ) -> None:
        self._serving, self._standing = serving, standing
        self._numbers = count(1)

    def predict(self, raw: bytes, use: Callable[[Chunk], None]) -> str:
        """Let `use` have the answer to `raw`; return the key under which it waits."""
        serving = self._serving()
        key = f'predict_chunk#{next(self._numbers)}'
        if serving is None:
            use(not_ready_chunk(raw, self._standing().text))
            return key
        refused = serving.enqueue_one_shot(key, raw, time.monotonic_ns(), use)
        if refused:
            use(refused)
        return key

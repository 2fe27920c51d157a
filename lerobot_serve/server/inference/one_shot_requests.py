# SPDX-License-Identifier: Apache-2.0
"""Queue requests without a session: one observation, one chunk each. Executor thread."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
import time

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.error_replies import not_ready_chunk
from lerobot_serve.server.messages import ServerState


class OneShotRequests:
    """Enqueues on the current core; `server_state` has the reason if there is none."""

    def __init__(
        self, core: Callable[[], ServerCore | None], server_state: Callable[[], ServerState]
    ) -> None:
        self._core, self._server_state = core, server_state
        self._numbers = count(1)

    def predict(self, raw: bytes, on_reply: Callable[[Chunk], None]) -> str:
        """Queue `raw`; `on_reply` receives the chunk. Return the key of the request."""
        core = self._core()
        key = f'predict_chunk#{next(self._numbers)}'
        if core is None:
            on_reply(not_ready_chunk(raw, self._server_state().text))
            return key
        refused = core.enqueue_one_shot(key, raw, time.monotonic_ns(), on_reply)
        if refused:
            on_reply(refused)
        return key

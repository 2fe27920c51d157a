# SPDX-License-Identifier: Apache-2.0
"""
The loop of the thread `inference`: take a batch, run the policy, send the replies. A request for a
quick policy is served in the thread that receives it.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.error_replies import not_ready_chunk
from lerobot_serve.server.inference.reply_sender import ReplySender
from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue
from lerobot_serve.server.messages import ServerState
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics


class InferenceLoop:
    """`core` returns None while no policy is loaded; `server_state` then has the reason."""

    def __init__(
        self,
        request_queue: RequestQueue,
        sender: ReplySender,
        statistics: ServerStatistics,
        observer: RequestObserver,
        core: Callable[[], ServerCore | None],
        server_state: Callable[[], ServerState],
    ) -> None:
        self._request_queue, self._sender = request_queue, sender
        self._statistics, self._observer = statistics, observer
        self._core, self._server_state = core, server_state

    def run(self) -> None:
        """Process batches until the queue is closed, then close the policy."""
        while batch := self._request_queue.take_batch():
            self._process(batch)
            # free the requests before the next wait
            del batch
        core = self._core()
        if core:
            core.worker.close()

    def serve(self, core: ServerCore, queued: QueuedRequest) -> None:
        """Serve one request that `RequestQueue.take_if_idle` gave to the calling thread."""
        try:
            self._serve(core, [queued])
        finally:
            self._request_queue.give_back()

    def _process(self, batch: list[QueuedRequest]) -> None:
        core = self._core()
        if core is None:
            self._drop(batch)
            return
        self._serve(core, batch)

    def _serve(self, core: ServerCore, batch: list[QueuedRequest]) -> None:
        for queued, chunk in core.worker.process(batch):
            self._sender.send(core, queued, chunk)

    def _drop(self, batch: list[QueuedRequest]) -> None:
        """Drop requests that arrived while the policy was unloaded."""
        for queued in batch:
            self._statistics.record_drop('session_ended', has_request_record=True)
            self._observer.on_dropped(queued, 'session_ended')
            queued.deliver(not_ready_chunk(queued.raw, self._server_state().text))

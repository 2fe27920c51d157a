# SPDX-License-Identifier: Apache-2.0
"""
The loop of the thread `inference`: take a batch, run the policy, send the replies. A request for a
quick policy is served in the thread that receives it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
import time

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Status
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue
from lerobot_serve.server.inference.request_validation import error_chunk, not_ready_chunk
from lerobot_serve.server.messages import ServerState
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics

# topic, bytes, whether the session is still open -> whether the chunk was published
Publish = Callable[[str, bytes, Callable[[], bool]], bool]


class ReplySender:
    """
    Sends the reply of a request, counts its latency or its loss, and reports it to the observer.
    `publish` sends bytes on the reply topic of a client. Intake, inference and main thread.
    """

    def __init__(
        self, publish: Publish, statistics: ServerStatistics, observer: RequestObserver
    ) -> None:
        self._publish, self.statistics, self.observer = publish, statistics, observer

    def send(self, core: ServerCore, queued: QueuedRequest, chunk: Chunk) -> None:
        """Send a reply to the topic of its session, or to the caller of a one-shot request."""
        chunk, raw, lost = self._encoded(core, queued, chunk)
        if queued.on_reply and not lost:
            lost = '' if queued.deliver(chunk) else 'unanswerable'
        elif not lost:
            is_open = partial(core.is_open, queued)
            if not self._publish(queued.session.request.reply_topic, raw, is_open):
                lost = 'session_closed'
        if lost:
            self.statistics.record_drop(lost, has_request_record=True)
        elif chunk.status == Status.OK:
            self.statistics.record_latency((time.monotonic_ns() - queued.arrived_ns) / 1e9)
        core.quotas.charge(chunk.client_id, chunk.inference_ms, time.monotonic_ns())
        self.observer.on_reply(queued, chunk, raw, lost)

    def _encoded(
        self, core: ServerCore, queued: QueuedRequest, chunk: Chunk
    ) -> tuple[Chunk, bytes, str]:
        """
        Return the reply and its bytes: POLICY_ERROR for one that cannot be encoded; and
        'unanswerable' where that fails, too.
        """
        try:
            return chunk, wire_chunk.encode(chunk), ''
        except Unencodable as error:
            # an unencodable reply of one client must not stop the others
            text = f'the policy returned a chunk that cannot be sent: {error}'
        failed = error_chunk(
            queued.raw,
            Status.POLICY_ERROR,
            text,
            slot=chunk.slot,
            policy=chunk.policy,
            seed=chunk.seed,
            superseded=chunk.superseded,
        )
        try:
            raw = wire_chunk.encode(failed)
        except Unencodable:
            return failed, b'', 'unanswerable'
        self.statistics.record_drop('policy_error', has_request_record=True)
        return failed, raw, ''


class InferenceLoop:
    """`core` returns None while no policy is loaded; `server_state` then has the reason."""

    def __init__(
        self,
        request_queue: RequestQueue,
        sender: ReplySender,
        core: Callable[[], ServerCore | None],
        server_state: Callable[[], ServerState],
    ) -> None:
        self._request_queue, self._sender = request_queue, sender
        self._core, self._server_state = core, server_state
        self._numbers = count(1)

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

    def predict(self, raw: bytes, on_reply: Callable[[Chunk], None]) -> str:
        """
        Queue a request without a session: one observation, one chunk, which `on_reply` receives.
        Return the key of the request. Executor thread.
        """
        core = self._core()
        key = f'predict_chunk#{next(self._numbers)}'
        if core is None:
            on_reply(not_ready_chunk(raw, self._server_state().text))
            return key
        refused = core.enqueue_one_shot(key, raw, time.monotonic_ns(), on_reply)
        if refused:
            on_reply(refused)
        return key

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
            self._sender.statistics.record_drop('session_ended', has_request_record=True)
            self._sender.observer.on_dropped(queued, 'session_ended')
            queued.deliver(not_ready_chunk(queued.raw, self._server_state().text))

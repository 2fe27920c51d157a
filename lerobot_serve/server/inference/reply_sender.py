# SPDX-License-Identifier: Apache-2.0
"""
Send the reply of a request, count its latency or its loss, and report it to the observer. Intake,
inference and main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import time

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Status
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.error_replies import error_chunk
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics

# topic, bytes, whether the session is still open -> whether the chunk was published
Publish = Callable[[str, bytes, Callable[[], bool]], bool]


class ReplySender:
    """`publish` sends bytes on the reply topic of a client."""

    def __init__(
        self, publish: Publish, statistics: ServerStatistics, observer: RequestObserver
    ) -> None:
        self._publish, self._statistics, self._observer = publish, statistics, observer

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
            self._statistics.record_drop(lost, has_request_record=True)
        elif chunk.status == Status.OK:
            self._statistics.record_latency((time.monotonic_ns() - queued.arrived_ns) / 1e9)
        core.quotas.charge(chunk.client_id, chunk.inference_ms, time.monotonic_ns())
        self._observer.on_reply(queued, chunk, raw, lost)

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
        self._statistics.record_drop('policy_error', has_request_record=True)
        return failed, raw, ''

# SPDX-License-Identifier: Apache-2.0
"""
One call of PredictStream: its messages in the order they are sent, and its replies in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from queue import SimpleQueue
import threading

import grpc

from lerobot_serve.client.gateway_link.channel import GatewayChannel, Metadata


class PredictionCall:
    """Any thread sends; a thread of its own calls `on_reply`, and `on_end` once."""

    def __init__(
        self,
        channel: GatewayChannel,
        metadata: Metadata,
        on_reply: Callable[[PredictionCall, bytes], None],
        on_end: Callable[[PredictionCall, grpc.RpcError | None], None],
    ) -> None:
        self._on_reply, self._on_end = on_reply, on_end
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        self._ended = threading.Event()
        # None ends the messages, and the thread of gRPC that sends them
        self._call = channel.predict_stream(iter(self._messages.get, None), metadata=metadata)
        threading.Thread(target=self._read, name='prediction_call', daemon=True).start()

    def send(self, raw: bytes) -> None:
        """Send a message; a call that has ended drops it, and has said so."""
        self._messages.put(raw)

    def finish(self, timeout_s: float) -> None:
        """End the call in order, after the timeout anyhow; the gateway closes the session."""
        self._messages.put(None)
        self._ended.wait(timeout_s)
        self.cancel()

    def cancel(self) -> None:
        """End the call now."""
        self._messages.put(None)
        self._call.cancel()

    def _read(self) -> None:
        ended_by: grpc.RpcError | None = None
        try:
            for raw in self._call:
                self._on_reply(self, raw)
        except grpc.RpcError as error:
            ended_by = error
        finally:
            self._messages.put(None)
            self._ended.set()
            with contextlib.suppress(RuntimeError):
                # the loop of an async client may be closed by now
                self._on_end(self, ended_by)

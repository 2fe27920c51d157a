# SPDX-License-Identifier: Apache-2.0
"""
The ServerLink to a gateway: each session is one PredictStream, and ends with it.

Calls block for a bounded time, in the thread of the caller. Replies arrive in the thread of the
stream, as the bytes that a server over Zenoh sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
import contextlib
from queue import SimpleQueue
import threading
from typing import Any

from google.protobuf.message import DecodeError
import grpc
from msgspec.structs import replace

from lerobot_serve.client.gateway_address import caller_name
from lerobot_serve.client.gateway_link import messages
from lerobot_serve.client.gateway_link.channel import call_error, GatewayChannel, Metadata
from lerobot_serve.client.results import GatewayAgreement
from lerobot_serve.client.settings import CLIENT_PREFIX
from lerobot_serve.contract.cdr import encodable_text, Outgoing
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.header import Envelope
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.records import (
    OpenSessionRequest,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
)
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.policy_service import Action
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.local.signal import Signal

SHOWN_BYTES = 80


class PredictionCall:
    """
    One call of PredictStream. Any thread sends, in order; a thread of its own calls `on_reply`,
    and `on_end` once.
    """

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


class GatewayServerLink:
    """See the module. Several share one channel, each with a client id of its own."""

    def __init__(self, channel: GatewayChannel, client_id: str, callbacks: LinkCallbacks) -> None:
        """Raises WrongSettings for a client id that a gateway does not take."""
        self._channel, self._callbacks = channel, callbacks
        self._metadata = channel.metadata(caller_name(client_id, CLIENT_PREFIX))
        self.signal = Signal
        self._lock = threading.Lock()
        self._call: PredictionCall | None = None
        # the first reply of a stream; None where it ended before
        self._opening: Future[Any] | None = None
        self._opened_for: OpenSessionRequest | None = None
        # of the session, and of its newest request
        self._cameras: Collection[str] = ()
        self._timeout_s = 0.0
        self._request: Envelope | None = None
        self._unwatch = channel.watch(callbacks.on_presence)
        self.is_available = channel.is_available
        self.absence = channel.absence
        self.describe = channel.describe

    def reply_topic(self, session_epoch: int) -> str:
        """Return a name for the stream; nothing is addressed by it."""
        return f'PredictStream/{session_epoch:08x}'

    def open(self, session_request: OpenSessionRequest, timeout_s: float) -> GatewayAgreement:
        """Open a session. Raises SessionRefused, ServerUnreachable and WrongSettings."""
        self._end_call()
        opening: Future[Any] = Future()
        # a reply finds the call known
        with self._lock:
            call = PredictionCall(self._channel, self._metadata, self._on_reply, self._on_end)
            self._call, self._opening = call, opening
            self._opened_for = session_request
        call.send(messages.session_message(session_request))
        try:
            policy = self._opened(opening, timeout_s)
        except BaseException:
            self._end_call()
            raise
        self._cameras = {camera.name for camera in policy.cameras}
        self._timeout_s = session_request.reply_deadline_s
        return messages.agreement_of(policy, session_request.codec, self._channel.address.warnings)

    def _opened(self, opening: Future[Any], timeout_s: float) -> Any:
        url = self._channel.address.url
        try:
            action = opening.result(timeout_s)
        except TimeoutError:
            raise ServerUnreachable(
                f'{url}: no session was opened within {timeout_s:.3g} s'
            ) from None
        except grpc.RpcError as error:
            raise call_error(url, error) from None
        if action is None:
            raise ServerUnreachable(f'{url}: the stream ended before a session was opened')
        messages.check_opened(action)
        return action.policy

    def encode(self, observation: Observation) -> bytes:
        """Return an Observation of PolicyService. Raises Unencodable."""
        raw = messages.observation_message(observation, self._cameras, self._timeout_s)
        self._request = Envelope(observation.header, observation.client_id, observation.episode_id)
        return raw

    def send(self, raw: Outgoing) -> None:
        """Send what was encoded last. Raises ServerUnreachable without a stream."""
        call = self._call
        if call is None:
            raise ServerUnreachable(f'{self._channel.address.url}: the stream has ended')
        call.send(bytes(raw))

    def wait_until_matched(self, _: float) -> bool:
        """Return True: the stream that opened the session carries its requests."""
        return True

    def reset(self, _: ResetEpisodeRequest, __: float) -> ResetEpisodeResponse:
        """Acknowledge: the next request has another episode id, and begins the episode."""
        return ResetEpisodeResponse(True, '')

    def close_session(self, session_request: OpenSessionRequest, timeout_s: float) -> None:
        """End the stream of a session; the gateway closes it."""
        # by now the stream may be that of another session under the same name
        call = self._take_call() if session_request is self._opened_for else None
        if call:
            call.finish(timeout_s)

    def close(self) -> None:
        """Stop callbacks, and end the stream."""
        self._unwatch()
        self._end_call()

    def _end_call(self) -> None:
        call = self._take_call()
        if call:
            call.cancel()

    def _take_call(self) -> PredictionCall | None:
        """Return the call, whose replies and end are not waited for any more."""
        with self._lock:
            call, opening = self._call, self._opening
            self._call = self._opening = None
        if opening:
            # the end of the call comes too late for the one that opens
            opening.set_result(None)
        return call

    # thread of the stream

    def _on_reply(self, call: PredictionCall, raw: bytes) -> None:
        with self._lock:
            if call is not self._call:
                return
            opening, self._opening = self._opening, None
        try:
            action = Action.FromString(raw)
        except DecodeError:
            # counted as what it is, a message that cannot be read
            self._callbacks.on_chunk(raw[:SHOWN_BYTES])
            return
        if opening:
            opening.set_result(action)
        elif self._request:
            self._callbacks.on_chunk(self._chunk(action, self._request))

    def _chunk(self, action: Any, request: Envelope) -> bytes:
        """Return the bytes of a reply; one to an older request is found late by its number."""
        if action.step_index != request.header.seq:
            header = replace(request.header, seq=max(0, action.step_index))
            request = request._replace(header=header)
        chunk = messages.chunk_of(action, request)
        try:
            return wire_chunk.encode(chunk)
        except Unencodable as error:
            text = encodable_text(f'the reply of the gateway cannot be used ({error})')
            return wire_chunk.encode(
                wire_chunk.Chunk(
                    chunk.header,
                    chunk.client_id,
                    chunk.episode_id,
                    status=Status.POLICY_ERROR,
                    status_text=text,
                )
            )

    def _on_end(self, call: PredictionCall, error: grpc.RpcError | None) -> None:
        with self._lock:
            if call is not self._call:
                return
            opening, self._call, self._opening = self._opening, None, None
        if opening and error:
            opening.set_exception(error)
        elif opening:
            opening.set_result(None)
        else:
            self._callbacks.on_presence(Presence.GONE)

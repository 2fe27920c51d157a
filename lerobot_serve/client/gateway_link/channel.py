# SPDX-License-Identifier: Apache-2.0
"""
The connection to a gateway, shared by the sessions of one client, and the errors of its calls. Any
thread; a thread of its own calls who watches it.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
import threading
from typing import Any

from google.protobuf.message import DecodeError
import grpc

from lerobot_serve.client.errors import WrongSettings
from lerobot_serve.client.gateway_address import GatewayAddress
from lerobot_serve.client.gateway_link.messages import info_of
from lerobot_serve.client.results import PolicyInfo
from lerobot_serve.contract.services.policy_service import DescribeRequest, Policy, SERVICE
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import OnPresence, Presence

DETAIL_LIMIT = 400
ABSENCE_TIMEOUT_S, END_TIMEOUT_S = 0.5, 1.0
# before the gateway is called again, and before one that has no place for a call
PAUSE_S, NO_PLACE_PAUSE_S = 0.2, 1.0
# of the metadata with which a gateway greets each stream, and refuses one
NOTE, STATUS = 'lerobot-serve-note', 'lerobot-serve-status'
MESSAGE_BYTES = 32 * 2**20
OPTIONS = (
    # a firewall that drops a silent connection is noticed within half a minute
    ('grpc.keepalive_time_ms', 20_000),
    ('grpc.keepalive_timeout_ms', 10_000),
    ('grpc.keepalive_permit_without_calls', 1),
    ('grpc.http2.max_pings_without_data', 0),
    # the session of a notebook rests for hours
    ('grpc.client_idle_timeout_ms', 2**31 - 1),
    ('grpc.initial_reconnect_backoff_ms', 100),
    ('grpc.min_reconnect_backoff_ms', 100),
    ('grpc.max_reconnect_backoff_ms', 1000),
    ('grpc.max_receive_message_length', MESSAGE_BYTES),
    # a gateway tells callers apart by their connections
    ('grpc.use_local_subchannel_pool', 1),
)
Metadata = tuple[tuple[str, str], ...]


class GatewayChannel:
    """
    Connects at once, and again after each loss. A PredictStream without messages, which opens no
    session, shows whether the gateway is there: also behind a proxy, whose connection says little.
    """

    def __init__(self, address: GatewayAddress) -> None:
        self.address = address
        self._is_there = False
        # why the gateway lets no call of this client in
        self._refusal: WrongSettings | None = None
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._watchers: list[OnPresence] = []
        self._channel = _channel(address)
        self._describe = self._channel.unary_unary(f'/{SERVICE}/Describe')
        self.predict_stream = self._channel.stream_stream(f'/{SERVICE}/PredictStream')
        self._presence: Any = None
        self._thread = threading.Thread(target=self._follow, name='gateway_presence', daemon=True)
        self._thread.start()

    def is_available(self) -> bool:
        """Return whether the gateway is there. Raises WrongSettings where it refuses the calls."""
        if self._refusal:
            raise self._refusal
        return self._is_there

    # thread of its own

    def _follow(self) -> None:
        while not self._closed.is_set():
            error, pause_s = self._attend(), PAUSE_S
            if error and has_no_place(error):
                # it is there, and serves the streams that it has
                self._note_there()
                pause_s = NO_PLACE_PAUSE_S
            elif error:
                refused = call_error(self.address.url, error)
                self._refusal = refused if isinstance(refused, WrongSettings) else None
                self._note(False)
            self._closed.wait(pause_s)

    def _attend(self) -> grpc.RpcError | None:
        """Wait until the presence ends; return why it did not begin, None where it did."""
        messages: SimpleQueue[bytes | None] = SimpleQueue()
        was_there = False
        try:
            with self._lock:
                if self._closed.is_set():
                    return None
                self._presence = call = self.predict_stream(
                    iter(messages.get, None),
                    metadata=self.metadata(),
                    # one that a proxy ends for its silence is begun again without a word
                    wait_for_ready=not self._is_there,
                )
            if any(key == NOTE for key, _ in call.initial_metadata() or ()):
                was_there = True
                self._note_there()
            for _ in call:
                pass
        except grpc.RpcError as error:
            return None if was_there else error
        finally:
            messages.put(None)
        return None

    def _note_there(self) -> None:
        self._refusal = None
        self._note(True)

    def _note(self, is_there: bool) -> None:
        with self._lock:
            is_news = is_there != self._is_there or self._refusal is not None
            self._is_there, watchers = is_there, tuple(self._watchers)
        if is_news and not self._closed.is_set():
            for watcher in watchers:
                watcher(Presence.THERE if is_there else Presence.GONE)

    def watch(self, watcher: OnPresence) -> Callable[[], None]:
        """Call `watcher` when the gateway comes or goes; return what ends that."""
        with self._lock:
            self._watchers.append(watcher)

        def end() -> None:
            with self._lock:
                if watcher in self._watchers:
                    self._watchers.remove(watcher)

        return end

    def metadata(self, name: str = '') -> Metadata:
        """Return what goes along with a call of a client of this name."""
        token = self.address.token
        credentials = (('authorization', f'Bearer {token}'),) if token else ()
        return (*credentials, ('client-name', name)) if name else credentials

    def describe(self, timeout_s: float) -> PolicyInfo:
        """Return what is served. Blocks. Raises ServerUnreachable and WrongSettings."""
        request = DescribeRequest().SerializeToString()
        try:
            raw: Any = self._describe(request, timeout=timeout_s, metadata=self.metadata())
            return info_of(Policy.FromString(raw))
        except grpc.RpcError as error:
            raise call_error(self.address.url, error) from None
        except DecodeError:
            raise ServerUnreachable(f'{self.address.url}: the reply cannot be read') from None

    def absence(self) -> str:
        """Return why the gateway is not reached. Blocks."""
        try:
            self.describe(ABSENCE_TIMEOUT_S)
        except ServerUnreachable as error:
            reason = str(error)
        else:
            reason = f'{self.address.url} has just come back'
        return (
            f'{reason}; check that the gateway runs with the door policy_service, its address and '
            'port, a firewall or proxy, and grpcs:// where it has TLS'
        )

    def close(self) -> None:
        """End all calls and the connection."""
        with self._lock:
            self._closed.set()
            presence = self._presence
        if presence:
            presence.cancel()
        self._channel.close()
        self._thread.join(END_TIMEOUT_S)


def has_no_place(error: grpc.RpcError) -> bool:
    """Return whether a gateway, and no proxy before it, has no place for a call."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return False
    # the error is the call, which its stubs do not say
    metadata = error.trailing_metadata()  # type: ignore[attr-defined]
    return any(key == STATUS for key, _ in metadata or ())


def _channel(address: GatewayAddress) -> grpc.Channel:
    if not address.is_encrypted:
        return grpc.insecure_channel(address.target, OPTIONS)
    credentials = grpc.ssl_channel_credentials(address.tls_ca)
    return grpc.secure_channel(address.target, credentials, OPTIONS)


def call_error(url: str, error: grpc.RpcError) -> WrongSettings | ServerUnreachable:
    """Return the error of a call that ended; wrong settings do not become right by a retry."""
    code, details = error.code(), (error.details() or '')[:DETAIL_LIMIT]
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return WrongSettings(f'{url} refuses this client: {details}', "give connect(token='...')")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return WrongSettings(
            f'{url} is not a gateway with the door policy_service, or one before 0.2 ({details})',
            'check the port, the path of a proxy, and the version of the gateway',
        )
    return ServerUnreachable(f'{url}: {details or code.name.lower()}')

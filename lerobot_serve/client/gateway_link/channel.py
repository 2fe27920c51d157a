# SPDX-License-Identifier: Apache-2.0
"""
The connection to a gateway, shared by the sessions of one client. Any thread; a thread of gRPC
calls who watches it.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any

from google.protobuf.message import DecodeError
import grpc

from lerobot_serve.client.gateway_address import GatewayAddress
from lerobot_serve.client.gateway_link.call_errors import call_error
from lerobot_serve.client.gateway_link.messages import info_of
from lerobot_serve.client.results import PolicyInfo
from lerobot_serve.wire.policy_service import DescribeRequest, Policy, SERVICE
from lerobot_serve.wire.session import ServerUnreachable

ABSENCE_TIMEOUT_S = 0.5
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
    """Connects at once, and again after each loss."""

    def __init__(self, address: GatewayAddress) -> None:
        self.address = address
        self.is_ready = False
        self._lock = threading.Lock()
        self._watchers: list[Callable[[bool], None]] = []
        self._channel = _channel(address)
        self._describe = self._channel.unary_unary(f'/{SERVICE}/Describe')
        self.predict_stream = self._channel.stream_stream(f'/{SERVICE}/PredictStream')
        self._channel.subscribe(self._on_state, try_to_connect=True)

    def _on_state(self, state: grpc.ChannelConnectivity) -> None:
        """Thread of gRPC."""
        if state is grpc.ChannelConnectivity.IDLE:
            # the server closed the connection; without a call nothing connects again
            self._channel.subscribe(_ignore, try_to_connect=True)
            self._channel.unsubscribe(_ignore)
        is_ready = state is grpc.ChannelConnectivity.READY
        with self._lock:
            is_news = is_ready != self.is_ready
            self.is_ready, watchers = is_ready, tuple(self._watchers)
        if is_news:
            for watcher in watchers:
                watcher(is_ready)

    def watch(self, watcher: Callable[[bool], None]) -> Callable[[], None]:
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
        self._channel.unsubscribe(self._on_state)
        self._channel.close()


def _ignore(_: grpc.ChannelConnectivity) -> None:
    pass


def _channel(address: GatewayAddress) -> grpc.Channel:
    if not address.is_encrypted:
        return grpc.insecure_channel(address.target, OPTIONS)
    credentials = grpc.ssl_channel_credentials(address.tls_ca)
    return grpc.secure_channel(address.target, credentials, OPTIONS)

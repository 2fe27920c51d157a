# SPDX-License-Identifier: Apache-2.0
"""
A gRPC server in the event loop, with bounds on messages, calls and dead connections.

The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.doors import Endpoint
from lerobot_serve.gateway.grpc_server.bounded import BoundedHandlers
from lerobot_serve.gateway.grpc_server.calls import Calls, CallSettings
from lerobot_serve.gateway.grpc_server.contexts import Context

# LeRobot sends pieces of 2 MiB; a little is around each
MESSAGE_BYTES = 4 * 2**20 + 2**16
KEEPALIVE_MS, KEEPALIVE_ANSWER_MS = 20_000, 10_000
# from the first byte of TCP to the settings of HTTP/2; grpc itself waits for 120 s
HANDSHAKE_MS = 10_000
STOP_GRACE_S = 0.5
# of those that are not callers, such as a client that watches whether the gateway is there
FURTHER_CALLS = 8
# of methods that need no token, such as probes of health
OPEN_CALLS = 8
OPTIONS = (
    ('grpc.keepalive_time_ms', KEEPALIVE_MS),
    ('grpc.keepalive_timeout_ms', KEEPALIVE_ANSWER_MS),
    ('grpc.keepalive_permit_without_calls', 1),
    # clients may ask as often whether the connection lives
    ('grpc.http2.min_ping_interval_without_data_ms', KEEPALIVE_ANSWER_MS),
    # a second server on the same port would take every other caller
    ('grpc.so_reuseport', 0),
)


class GrpcServer(Endpoint):
    """Listens at the address of an exposure."""

    def __init__(
        self,
        gateway: Gateway,
        exposure: Exposure,
        settings: EndpointSettings,
        service: str,
        methods: Mapping[str, grpc.RpcMethodHandler],
        *,
        calls_per_caller: int,
        message_bytes: int = MESSAGE_BYTES,
        open_handlers: Sequence[grpc.GenericRpcHandler] = (),
    ) -> None:
        """
        `open_handlers` need no token; their calls take none of the places of callers. A method
        raises PredictionError to end its call.
        """
        super().__init__(gateway, exposure, settings)
        idle_s = gateway.settings.idle_timeout_s
        max_calls = calls_per_caller * gateway.settings.max_callers + FURTHER_CALLS
        calls = Calls(CallSettings(max_calls, idle_s), self._note_call)
        # the call that rests longest gives way at once: one that watches keeps no probe out
        others = Calls(CallSettings(OPEN_CALLS, idle_s, gives_way_s=0.0), self._note_call)
        own = grpc.method_handlers_generic_handler(service, methods)
        self._handlers = [BoundedHandlers(own, calls, exposure, self._note_error)]
        self._handlers += [BoundedHandlers(each, others) for each in open_handlers]
        self._max_calls = max_calls + OPEN_CALLS
        self._message_bytes = message_bytes
        self._server: grpc.aio.Server | None = None
        self._port = exposure.port

    @property
    def address(self) -> str:
        """Host and port, as the server_address of a client."""
        return f'{self._exposure.shown_host}:{self._port}'

    def _note_call(self, reason: str, who: str, text: str) -> None:
        # a client that rests does nothing wrong: it gets a sentence, and opens its stream again
        if reason == 'idle':
            self._on_refused(reason)
        else:
            self._gateway.log_refused(self._exposure.door, reason, who, text)

    def _note_error(self, context: Context, error: PredictionError) -> None:
        """Count a call that ends with an error; the gateway counts all others."""
        if error.status is Status.INVALID:
            self._on_refused(error.status)

    async def start(self) -> None:
        """Listen. Raises UserError for an address that cannot be used."""
        bounds = (
            ('grpc.max_receive_message_length', self._message_bytes),
            # of one connection: a client waits with more, and none is refused uncounted
            ('grpc.max_concurrent_streams', self._max_calls),
            ('grpc.max_allowed_incoming_connections', self._settings.max_connections),
            ('grpc.server_handshake_timeout_ms', HANDSHAKE_MS),
        )
        server = grpc.aio.server(options=(*OPTIONS, *bounds))
        server.add_generic_rpc_handlers(self._handlers)
        try:
            self._port = self._bind(server)
        except RuntimeError:
            self._port = 0
        if not self._port:
            raise self._exposure.cannot_listen(
                'the port is in use, or the address is not of this machine'
            )
        await server.start()
        self._server = server

    def _bind(self, server: grpc.aio.Server) -> int:
        address = f'{self._exposure.shown_host}:{self._exposure.port}'
        if not self._exposure.certificate:
            return server.add_insecure_port(address)
        pair = (self._exposure.key, self._exposure.certificate)
        return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))

    async def stop(self) -> None:
        """End the connections. May be called twice."""
        server, self._server = self._server, None
        if server:
            await server.stop(STOP_GRACE_S)

# SPDX-License-Identifier: Apache-2.0
"""
Serve /metrics for Prometheus, /healthz (no watched thread stands still) and /readyz (the node is
ready) over HTTP; otherwise the last two have status 503 and the reason. A separate daemon thread,
which only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
import contextlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import math
import socket
import threading
import time
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from lerobot_serve.parameters import ParameterError
from lerobot_serve.telemetry.metric_families import keys_expiry

PLAIN = 'text/plain; charset=utf-8'
# of a whole request, with its reply
REQUEST_TIMEOUT_S = 5.0
# each has a thread; others are closed
REQUESTS_LIMIT = 16
Collect = Callable[[], Iterable[Metric]]
Reason = Callable[[], str]


class MetricsParameters(Protocol):
    """The endpoint parameters of a node."""

    @property
    def metrics_port(self) -> int: ...

    @property
    def metrics_address(self) -> str: ...


def start_endpoint(
    parameters: MetricsParameters,
    collect: Collect,
    *,
    keys: str,
    why_not_ready: Reason,
    why_not_alive: Reason,
) -> HttpEndpoint | None:
    """
    Start and return the endpoint; None if `metrics_port` is 0. `keys` is the folder with the keys
    of the node, empty without. Raises ParameterError and UserError.
    """
    if not parameters.metrics_port:
        return None
    of_keys = [keys_expiry(keys)] if keys else []
    return HttpEndpoint(
        parameters.metrics_address,
        parameters.metrics_port,
        lambda: [*of_keys, *collect()],
        why_not_ready=why_not_ready,
        why_not_alive=why_not_alive,
    )


class FunctionCollector(Collector):
    """Adapts a function to the Collector interface of the registry."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class HttpEndpoint:
    """
    Serves from construction until `close`. `why_not_ready` returns an empty text when the node is
    ready, `why_not_alive` when no thread stands still. The constructor raises ParameterError.
    """

    def __init__(
        self,
        address: str,
        port: int,
        collect: Collect,
        *,
        why_not_ready: Reason,
        why_not_alive: Reason,
    ) -> None:
        if not address:
            raise ParameterError(
                "metrics_address is '', which is not an address; use 127.0.0.1, or 0.0.0.0 for "
                'all interfaces, and metrics_port 0 to disable the endpoint'
            )
        registry = CollectorRegistry()
        registry.register(FunctionCollector(collect))
        self._pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            '/metrics': lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            '/healthz': lambda: state_page('alive', why_not_alive()),
            '/readyz': lambda: state_page('ready', why_not_ready()),
        }
        try:
            self._server = BoundedServer((address, port), request_handler(self._pages))
        except (OSError, OverflowError) as error:
            raise ParameterError(
                f'metrics_port {port}: cannot listen on metrics_address {address}: {error}; use '
                'another port, or 0 to disable the endpoint; an address is an IPv4 address of '
                'this machine, or 0.0.0.0 for all interfaces'
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name='metrics', daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def close(self) -> None:
        """Stop serving and end the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BoundedServer(ThreadingHTTPServer):
    """Serves at most REQUESTS_LIMIT requests at a time, each for at most REQUEST_TIMEOUT_S."""

    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self._until_s: dict[socket.socket, float] = {}
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a request in a thread. The thread of the server."""
        if len(self._until_s) >= REQUESTS_LIMIT:
            self.shutdown_request(request)
            return
        self._until_s[request] = time.monotonic() + REQUEST_TIMEOUT_S
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the requests that take too long. The thread of the server, twice a second."""
        self._end_requests(time.monotonic())

    def server_close(self) -> None:
        """End all requests. After the thread of the server."""
        super().server_close()
        self._end_requests(math.inf)

    def _end_requests(self, now_s: float) -> None:
        for request, until_s in tuple(self._until_s.items()):
            if now_s > until_s:
                # its own thread may have closed it
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a request, however it ended. Any thread."""
        self._until_s.pop(request, None)
        super().shutdown_request(request)


def state_page(state: str, why_not: str) -> tuple[int, str, bytes]:
    """Return status, content type and body of /healthz or /readyz."""
    return (503 if why_not else 200), PLAIN, f'{why_not or state}\n'.encode()


def request_handler(pages: dict[str, Callable[[], tuple[int, str, bytes]]]) -> type:
    """Return the handler class that serves these pages."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(self._head())

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            """Send the status and the headers of a page; return its body."""
            page = pages.get(self.path.partition('?')[0])
            missing = f'not found; use {", ".join(pages)}\n'.encode()
            status, kind, body = page() if page else (404, PLAIN, missing)
            self.send_response(status)
            self.send_header('Content-Type', kind)
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            return body

        def log_message(self, *_: object) -> None:
            """Log nothing: a line for each scrape would hide other log lines."""

    return Handler

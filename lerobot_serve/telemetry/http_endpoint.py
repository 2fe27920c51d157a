# SPDX-License-Identifier: Apache-2.0
"""
Serve /metrics for Prometheus, /healthz (no watched thread stands still) and /readyz (the node is
ready) over HTTP; otherwise the last two have status 503 and the reason. A separate daemon thread,
which only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import threading
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from lerobot_serve.parameters import ParameterError

PLAIN = 'text/plain; charset=utf-8'
REQUEST_TIMEOUT_S = 5.0
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
    why_not_ready: Reason,
    why_not_alive: Reason,
) -> HttpEndpoint | None:
    """Start and return the endpoint; None if `metrics_port` is 0. Raises ParameterError."""
    if not parameters.metrics_port:
        return None
    return HttpEndpoint(
        parameters.metrics_address,
        parameters.metrics_port,
        collect,
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
        registry = CollectorRegistry()
        registry.register(FunctionCollector(collect))
        self._pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            '/metrics': lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            '/healthz': lambda: state_page('alive', why_not_alive()),
            '/readyz': lambda: state_page('ready', why_not_ready()),
        }
        try:
            self._server = ThreadingHTTPServer((address, port), request_handler(self._pages))
        except (OSError, OverflowError) as error:
            raise ParameterError(
                f'metrics_port {port}: cannot listen on {address}: {error}; use another port, '
                'or 0 to disable the endpoint'
            ) from error
        self._server.daemon_threads = True
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


def state_page(state: str, why_not: str) -> tuple[int, str, bytes]:
    """Return status, content type and body of /healthz or /readyz."""
    return (503 if why_not else 200), PLAIN, f'{why_not or state}\n'.encode()


def request_handler(pages: dict[str, Callable[[], tuple[int, str, bytes]]]) -> type:
    """Return the handler class that serves these pages."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

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

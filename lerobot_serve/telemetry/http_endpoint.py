"""
One node's HTTP endpoint: /metrics for Prometheus, /healthz (the process answers) and /readyz (it
can do its work, otherwise 503 with the reason). A daemon thread of its own, which only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import threading
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from lerobot_serve.parameters import ParameterError

PLAIN = 'text/plain; charset=utf-8'
REQUEST_TIMEOUT_S = 5.0
Collect = Callable[[], Iterable[Metric]]


class MetricsParameters(Protocol):
    """The dataclass of a node's parameters."""

    metrics_port: int
    metrics_address: str


def start_endpoint(
    settings: MetricsParameters, collect: Collect, why_not_ready: Callable[[], str]
) -> HttpEndpoint | None:
    """Return the endpoint, None where `metrics_port` is 0. Raises ParameterError."""
    if not settings.metrics_port:
        return None
    return HttpEndpoint(settings.metrics_address, settings.metrics_port, collect, why_not_ready)


class Collector:
    """Hands what a function returns to the registry."""

    def __init__(self, collect: Collect) -> None:
        self.collect = collect


class HttpEndpoint:
    """
    Serves until `close`. `why_not_ready` is empty when the node can work. Raises ParameterError.
    """

    def __init__(
        self, address: str, port: int, collect: Collect, why_not_ready: Callable[[], str]
    ) -> None:
        registry = CollectorRegistry()
        registry.register(Collector(collect))
        self._pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            '/metrics': lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            '/healthz': lambda: (200, PLAIN, b'alive\n'),
            '/readyz': lambda: readiness_page(why_not_ready()),
        }
        try:
            self._server = ThreadingHTTPServer((address, port), request_handler(self._pages))
        except (OSError, OverflowError) as error:
            raise ParameterError(
                f'metrics_port {port} of {address} cannot be used: {error}; choose another one, '
                'or 0 for none'
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
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def readiness_page(why_not: str) -> tuple[int, str, bytes]:
    """Return the page that tells whether a node can work."""
    return (503, PLAIN, f'{why_not}\n'.encode()) if why_not else (200, PLAIN, b'ready\n')


def request_handler(pages: dict[str, Callable[[], tuple[int, str, bytes]]]) -> type:
    """Return what answers requests with these pages."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            self.wfile.write(self._head())

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            """Send the status and the headers of a page; return its body."""
            page = pages.get(self.path.partition('?')[0])
            known = ', '.join(pages)
            status, kind, body = page() if page else (404, PLAIN, f'there are {known}\n'.encode())
            self.send_response(status)
            self.send_header('Content-Type', kind)
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            return body

        def log_message(self, *_: object) -> None:
            """A line for each scrape would drown what matters."""

    return Handler

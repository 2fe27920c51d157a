# SPDX-License-Identifier: Apache-2.0
"""
A read-only HTTP server of a store: GET and HEAD of versions.json, manifests, and files by range.

Only files that a manifest names are read. A bounded number of connections has a daemon thread
each (`places`); one above the bound gets 503. Any thread starts and closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
import json
import os
from pathlib import Path
import re
import socket
import ssl
import threading
import time
from typing import Any, BinaryIO
from urllib.parse import unquote

from lerobot_serve.access.token_file import Tokens, WrongTokens
from lerobot_serve.errors import UserError
from lerobot_serve.versions.errors import StoreError, VersionError
from lerobot_serve.versions.file_hash import open_regular
from lerobot_serve.versions.layout import held
from lerobot_serve.versions.manifest import ID, MANIFEST_FILE, read_manifest
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer.http_files import LIST_PATH
from lerobot_serve.versions.transfer.places import Places

CONNECTIONS = 16
# of one read, and of sending one block
TIMEOUT_S, HEAD_LIMIT_S = 30.0, 10.0
SEND_BYTES = 256 << 10
# how soon close() is noticed
POLL_S = 0.1
RANGE = re.compile(r'bytes=(\d{1,18})-(\d{0,18})')
JSON, BYTES = 'application/json', 'application/octet-stream'
# the first byte of a TLS connection, and a reply to it by which its client knows what is wrong
TLS_HANDSHAKE = b'\x16'
NOT_ENCRYPTED_REPLY = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
BUSY_REPLY = b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'


class NotFound(Exception):
    """A path that this server does not have."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Without `tokens` every client that reaches the address may read."""

    address: str = '127.0.0.1'
    port: int = 0
    tokens: Tokens | None = None
    tls: ssl.SSLContext | None = None
    connections: int = CONNECTIONS


class StoreHttpServer:
    """Serves from construction until `close`. The constructor raises StoreError."""

    def __init__(
        self,
        store: VersionStore,
        settings: HttpSettings | None = None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """`log` gets a line for each reply, in the thread of its connection."""
        settings = settings or HttpSettings()
        try:
            self._server = _Server(store, settings, log)
        except (OSError, OverflowError) as error:
            reason = getattr(error, 'strerror', None) or error
            raise StoreError(
                f'cannot listen on {settings.address} port {settings.port}: {reason}; use another '
                '--port, or 0 for a free one'
            ) from None
        self._is_encrypted = settings.tls is not None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[POLL_S], name='versions', daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        name = f'[{host!s}]' if ':' in str(host) else str(host)
        return f'{"https" if self._is_encrypted else "http"}://{name}:{port}'

    def close(self) -> None:
        """Stop to accept; connections that were let in end with the process."""
        self._server.shutdown()
        self._server.places.close()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, store: VersionStore, settings: HttpSettings, log: Callable[[str], object]
    ) -> None:
        self.store, self.tokens, self.log = store, settings.tokens, log
        self._tls = settings.tls
        self.places = Places(settings.connections)
        self.wrong_tokens, self.wrong_tokens_lock = WrongTokens(), threading.Lock()
        if ':' in settings.address:
            self.address_family = socket.AF_INET6
        super().__init__((settings.address, settings.port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        opened, address = super().get_request()
        opened.settimeout(TIMEOUT_S)
        if self._tls is None:
            return opened, address
        # the handshake comes with the first read, in the thread of the connection
        return (
            self._tls.wrap_socket(opened, server_side=True, do_handshake_on_connect=False),
            address,
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.places.take(request):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            if self._tls is None:
                request.setblocking(False)
                request.send(BUSY_REPLY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.give_back(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client that leaves is not a fault of this server."""


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the context of a certificate, None without one. Raises UserError."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UserError('--tls-certificate and --tls-key belong together; give both')
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f'--tls-certificate {certificate} and --tls-key {key} cannot be used: '
            f'{error.strerror or error}'
        ) from None
    return context


def _opened(file: Path) -> BinaryIO:
    """Raises NotFound for what is not a regular file."""
    try:
        return open_regular(file)
    except (OSError, ValueError) as error:
        raise NotFound from error


@dataclass(frozen=True, slots=True)
class _Content:
    """What a path has; `file` is positioned at 0."""

    kind: str
    size_bytes: int
    file: BinaryIO
    tag: str = ''


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = 'HTTP/1.1'
    timeout = TIMEOUT_S

    def handle(self) -> None:
        # one request for each connection, so that an idle one holds no thread
        timer = threading.Timer(HEAD_LIMIT_S, self._shut_down)
        timer.daemon = True
        timer.start()
        self.head_timer = timer
        try:
            if self._is_tls_hello():
                self.wfile.write(NOT_ENCRYPTED_REPLY)
            else:
                self.handle_one_request()
        finally:
            timer.cancel()

    def _is_tls_hello(self) -> bool:
        """Return whether a client wants encryption here; it may wait for the end of a line."""
        if isinstance(self.connection, ssl.SSLSocket):
            return False
        return bool(self.connection.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE)

    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        self.head_timer.cancel()
        self.close_connection = True
        return is_valid

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        if not self._is_allowed():
            if self._wait_after_wrong_token():
                self._reply_empty(HTTPStatus.UNAUTHORIZED, [('WWW-Authenticate', 'Bearer')])
            return
        self.server.places.let_in(self.connection)
        try:
            with self._content() as content:
                self._send(content)
        except NotFound:
            self._reply_empty(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def _is_allowed(self) -> bool:
        tokens = self.server.tokens
        if tokens is None:
            return True
        scheme, _, token = self.headers.get('Authorization', '').partition(' ')
        return scheme == 'Bearer' and bool(tokens.name_of(token.strip()))

    def _wait_after_wrong_token(self) -> bool:
        """Wait longer each time; return whether the connection is still open then."""
        server, address, now_s = self.server, self.client_address[0], time.monotonic()
        with server.wrong_tokens_lock:
            server.wrong_tokens.note(address, now_s)
            delay_s = server.wrong_tokens.delay_s(address, now_s)
        return not server.places.wait_until_closed(self.connection, delay_s)

    @contextlib.contextmanager
    def _content(self) -> Iterator[_Content]:
        """Yield what the path names. Raises NotFound."""
        path = unquote(self.path.partition('?')[0]).removeprefix('/')
        version_id, _, name = path.partition('/')
        store = self.server.store
        try:
            if path == LIST_PATH:
                ids = [each.id for each in store.entries() if each.manifest]
                data = json.dumps({'versions': ids}).encode()
                yield _Content(JSON, len(data), BytesIO(data))
                return
            if not ID.fullmatch(version_id):
                raise NotFound
            folder = store.path(version_id)
            with held(folder):
                manifest = read_manifest(folder)
                if name == MANIFEST_FILE:
                    data = manifest.encoded()
                    yield _Content(JSON, len(data), BytesIO(data))
                    return
                wanted = manifest.file(name)
                if wanted is None:
                    raise NotFound
                with _opened(folder / name) as file:
                    size = os.fstat(file.fileno()).st_size
                    yield _Content(BYTES, size, file, wanted.sha256)
        except VersionError as error:
            raise NotFound from error

    def _send(self, content: _Content) -> None:
        start, end, status = self._range(content.size_bytes)
        if status is HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            self._reply_empty(status, [('Content-Range', f'bytes */{content.size_bytes}')])
            return
        self.send_response(status)
        self.send_header('Content-Type', content.kind)
        self.send_header('Content-Length', str(end - start))
        self.send_header('Accept-Ranges', 'bytes')
        if content.tag:
            self.send_header('ETag', f'"{content.tag}"')
        if status is HTTPStatus.PARTIAL_CONTENT:
            self.send_header('Content-Range', f'bytes {start}-{end - 1}/{content.size_bytes}')
        self.send_header('Connection', 'close')
        self.end_headers()
        content.file.seek(start)
        while self.command == 'GET' and (block := content.file.read(min(SEND_BYTES, end - start))):
            self.wfile.write(block)
            start += len(block)

    def _range(self, size_bytes: int) -> tuple[int, int, HTTPStatus]:
        """Return the first byte, the one after the last, and the status."""
        match = RANGE.fullmatch(self.headers.get('Range', ''))
        if match is None:
            # as HTTP has it: a range of another form is the whole file
            return 0, size_bytes, HTTPStatus.OK
        start = int(match[1])
        end = min(int(match[2]) + 1, size_bytes) if match[2] else size_bytes
        if start >= end:
            return 0, 0, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        return start, end, HTTPStatus.PARTIAL_CONTENT

    def _reply_empty(
        self, status: HTTPStatus, headers: list[tuple[str, str]] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers or []:
            self.send_header(name, value)
        self.send_header('Content-Length', '0')
        self.send_header('Connection', 'close')
        self.end_headers()

    def version_string(self) -> str:
        return 'lerobot_serve'

    def log_request(self, code: int | str = '-', size: int | str = '-') -> None:
        status = int(code) if isinstance(code, HTTPStatus) else code
        self.server.log(f'{self.client_address[0]} {self.command} {self.path} {status}')

    def log_message(self, *_: object) -> None:
        """Log nothing but replies."""

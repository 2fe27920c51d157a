# SPDX-License-Identifier: Apache-2.0
"""
The source that is an HTTP server: lists, manifests, and files from an offset on.

Each wait is bounded: a connection, the head of a reply, each read, and the rate over a window. A
redirect is refused, since it would leave the server that was named. One thread, and a timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass, field
import http.client
import json
from pathlib import Path
import re
import socket
import ssl
import threading
import time
from urllib.parse import quote, urlsplit

from lerobot_serve.access.addresses import is_loopback_address
from lerobot_serve.access.token_file import check_private, parsed_tokens
from lerobot_serve.errors import UserError
from lerobot_serve.versions.errors import FetchError, Interrupted
from lerobot_serve.versions.file_hash import BLOCK_BYTES
from lerobot_serve.versions.manifest import (
    ID,
    Manifest,
    MANIFEST_FILE,
    MANIFEST_LIMIT_BYTES,
    ManifestFile,
    parsed_manifest,
)
from lerobot_serve.versions.transfer.source import Opened

LIST_PATH = 'versions.json'
ID_LIMIT = 10_000
CONTENT_RANGE = re.compile(r'bytes (\d{1,18})-(\d{1,18})/(\d{1,18})')
BUSY = (429, 502, 503, 504)
# what OpenSSL names the first bytes of a reply that is not encrypted; it depends on its version
NO_TLS = ('WRONG_VERSION_NUMBER', 'RECORD_LAYER_FAILURE')


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the waits; fewer than `least_rate_bytes` a second over a window is a stall."""

    read_s: float = 20.0
    head_s: float = 30.0
    window_s: float = 30.0
    least_rate_bytes: float = 1000.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server, a token for it, and the file of the authorities (of the system)."""

    url: str
    token: str = field(default='', repr=False)
    authorities: Path | None = None

    @property
    def warning(self) -> str:
        """Return what is worth reading before the fetch; empty for nothing."""
        parts = urlsplit(self.url)
        if parts.scheme == 'https' or is_loopback_address(parts.hostname or ''):
            return ''
        return (
            f'{self.url} is not encrypted: others on the network can read the policy'
            f'{" and the token" if self.token else ""}; SHA-256 does not help if they change the '
            'manifest too. Use https://, or compare the id with that of the publisher'
        )


def is_address(source: str) -> bool:
    return source.startswith(('http://', 'https://'))


def read_token(file: Path) -> str:
    """Return the first token of a private file with lines NAME TOKEN. Raises UserError."""
    try:
        check_private(file)
        tokens = parsed_tokens(file.read_text('utf-8'), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, 'strerror', None) or 'is not UTF-8 text'
        raise UserError(f'file of tokens {file}: {reason}') from None
    return next(iter(tokens.values()))


class HttpSource:
    """See the module; a connection for each file."""

    def __init__(
        self,
        address: ServerAddress,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises FetchError for an address that has no meaning here."""
        self.name, self._token = address.url, address.token
        self._limits, self._clock = limits or Limits(), clock
        self._host, self._port, self._base = _target(address.url)
        self._tls = _tls_context(address)

    def ids(self) -> list[str]:
        data = self._small(LIST_PATH)
        try:
            found = json.loads(data)['versions']
            if len(found) <= ID_LIMIT and all(ID.fullmatch(each) for each in found):
                return sorted(found)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise FetchError(f'{self.name}/{LIST_PATH} is not a list of versions; check the address')

    def manifest(self, version_id: str) -> Manifest:
        path = f'{version_id}/{MANIFEST_FILE}'
        return parsed_manifest(self._small(path), f'{self.name}/{path}')

    @contextlib.contextmanager
    def open(self, version_id: str, file: ManifestFile, start: int) -> Iterator[Opened]:
        path = f'{version_id}/{file.path}'
        with self._asked(path, start) as (reply, _):
            begins = self._start_of(reply, path, file, start)
            yield Opened(begins, self._blocks(reply, path, file.size_bytes - begins))

    def _start_of(
        self, reply: http.client.HTTPResponse, path: str, file: ManifestFile, start: int
    ) -> int:
        """Return where a reply begins. Raises FetchError unless it is the rest of the file."""
        if reply.status == 206:
            given = reply.headers.get('Content-Range', '')
            match = CONTENT_RANGE.fullmatch(given)
            wanted = (start, file.size_bytes - 1, file.size_bytes)
            if match is None or tuple(map(int, match.groups())) != wanted:
                raise FetchError(
                    f'{self.name}/{path}: the server answers with Content-Range {given!r:.80} to '
                    f'bytes {start}-{file.size_bytes - 1}/{file.size_bytes}; it cannot be used'
                )
        begins = start if reply.status == 206 else 0
        length = reply.headers.get('Content-Length', '')
        if length != str(file.size_bytes - begins):
            raise FetchError(
                f'{self.name}/{path}: the server sends {length or "an unknown number of"!s:.20} '
                f'bytes, the manifest names {file.size_bytes - begins}; the version is damaged '
                'there: publish it again'
            )
        return begins

    def _blocks(
        self, reply: http.client.HTTPResponse, path: str, size_bytes: int
    ) -> Iterator[bytes]:
        """Yield the body. Raises Interrupted if it ends early or stalls."""
        left = size_bytes
        since_s, received = self._clock(), 0
        while left:
            block = self._read(reply, path, min(left, BLOCK_BYTES))
            if not block:
                raise Interrupted(f'{self.name}/{path} ended {left} bytes early')
            left -= len(block)
            received += len(block)
            yield block
            elapsed_s = self._clock() - since_s
            if left and elapsed_s >= self._limits.window_s:
                if received < self._limits.least_rate_bytes * elapsed_s:
                    raise Interrupted(f'{self.name}/{path}: {received} bytes in {elapsed_s:.0f} s')
                since_s, received = self._clock(), 0

    def _read(self, reply: http.client.HTTPResponse, path: str, size_bytes: int) -> bytes:
        try:
            # not read(), which waits until all of it is there
            return reply.read1(size_bytes)
        except (OSError, http.client.HTTPException) as error:
            raise self._interrupted(path, error) from None

    def _small(self, path: str) -> bytes:
        """Return a whole body of bounded size, within `head_s`."""
        with self._asked(path, 0) as (reply, deadline), deadline:
            try:
                data = reply.read(MANIFEST_LIMIT_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                raise self._interrupted(path, error) from None
        if len(data) > MANIFEST_LIMIT_BYTES:
            raise FetchError(f'{self.name}/{path} has more than {MANIFEST_LIMIT_BYTES} bytes')
        return data

    @contextlib.contextmanager
    def _asked(
        self, path: str, start: int
    ) -> Iterator[tuple[http.client.HTTPResponse, contextlib.AbstractContextManager[None]]]:
        """Yield an accepted reply, and the deadline for a body that is read at once."""
        connection = self._connection()
        headers = {'Accept-Encoding': 'identity', 'Connection': 'close'}
        if start:
            headers['Range'] = f'bytes={start}-'
        if self._token:
            headers['Authorization'] = f'Bearer {self._token}'
        try:
            try:
                self._connect(connection)
                # the reply takes it from the connection
                opened: socket.socket = connection.sock
                with self._deadline(opened):
                    connection.request('GET', f'{self._base}/{quote(path, "/@")}', headers=headers)
                    reply = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise self._interrupted(path, error) from None
            self._check_status(reply, path)
            yield reply, self._deadline(opened)
        finally:
            connection.close()

    def _check_status(self, reply: http.client.HTTPResponse, path: str) -> None:
        where, status = f'{self.name}/{path}', reply.status
        if status in (200, 206):
            if reply.headers.get('Content-Encoding', 'identity') != 'identity':
                raise FetchError(f'{where}: the server compresses files; turn that off there')
            return
        if 300 <= status < 400:
            to = reply.headers.get('Location', '')
            raise FetchError(
                f'{where}: the server redirects to {to!r:.120}, and redirects are not followed; '
                'give that address if it is yours'
            )
        if status == 401:
            raise FetchError(
                f'{where}: the server does not know the token of --token-file; it has to be a '
                'line of the file that the server was started with'
                if self._token
                else f'{where}: the server wants a token; give --token-file FILE'
            )
        if status in BUSY:
            raise Interrupted(f'{where}: the server is busy ({status})')
        raise FetchError(f'{where}: the server answers {status}; check address and version')

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._limits.read_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._limits.read_s, context=self._tls
        )

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        """Raises FetchError for a server that is not encrypted, else what `connect` raises."""
        try:
            connection.connect()
        except ssl.SSLError as error:
            if error.reason not in NO_TLS:
                raise
            raise FetchError(f'{self.name}: the server is not encrypted; give http://') from None

    @contextlib.contextmanager
    def _deadline(self, opened: socket.socket) -> Iterator[None]:
        """Shut a connection down if the block takes longer than `head_s`."""
        timer = threading.Timer(self._limits.head_s, _shut_down, [opened])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _interrupted(self, path: str, error: Exception) -> Interrupted:
        if isinstance(error, ssl.SSLCertVerificationError):
            raise FetchError(
                f'{self.name}: its certificate is not trusted ({error.verify_message}); give the '
                'file of its authority with --tls-ca'
            ) from None
        reason = getattr(error, 'strerror', None) or str(error) or type(error).__name__
        if isinstance(error, http.client.RemoteDisconnected) and self._tls is None:
            # a server that was killed looks the same
            reason += ' (if the server is encrypted, give https://)'
        return Interrupted(f'{self.name}/{path}: {reason}')


def _shut_down(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def _target(url: str) -> tuple[str, int, str]:
    """Return host, port and base path. Raises FetchError."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == 'https' else 80)
    except ValueError:
        parts, port = urlsplit(''), 0
    has_more = parts.username is not None or parts.query or parts.fragment
    is_plain = url.isascii() and url.isprintable() and ' ' not in url
    if not (parts.hostname and is_plain and is_address(url)) or has_more:
        raise FetchError(
            f'the address must be http://HOST:PORT or https://HOST:PORT, with a path at most, got '
            f'{url!r:.120}'
        )
    return parts.hostname, port, parts.path.rstrip('/')


def _tls_context(address: ServerAddress) -> ssl.SSLContext | None:
    if not address.url.startswith('https://'):
        if address.authorities:
            raise FetchError(f'--tls-ca is given, and {address.url} is not encrypted; remove one')
        return None
    try:
        return ssl.create_default_context(cafile=address.authorities)
    except OSError as error:
        raise FetchError(
            f'--tls-ca {address.authorities} cannot be used: {error.strerror or error}; give the '
            'PEM file of the authority'
        ) from None

# SPDX-License-Identifier: Apache-2.0
"""
Who may read and act: one table of the token, the address and TLS; what holds for every request;
and the files of the page, read once at start. Pure, but for `read_page` and the middleware in the
event loop's thread.

Reading needs no token. Acting needs a token, and a connection on which no one else reads it: the
address of the dashboard is one of this machine, or the connection is TLS. The content security
policy of replies allows exactly the scripts and styles in the page.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from html.parser import HTMLParser
import ipaddress
from pathlib import Path
import sys
import traceback

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lerobot_serve.errors import UserError

NOT_PRIVATE = (
    'acting is off: the dashboard is reached over the network without TLS, where others can read '
    'the token. Start it with --tls-certificate and --tls-key, or reach it on 127.0.0.1 through '
    '`ssh -L 8300:127.0.0.1:8300 HOST`'
)
NO_TOKEN = 'acting needs a token: open the address with #token=..., which the dashboard prints'
WRONG_TOKEN = 'the token is wrong: compare it with the file of tokens of the dashboard'


class Refused(Exception):
    """A request that is not served: a status, and a sentence with a remedy."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def check_access(token: str, name: str, *, is_private: bool) -> None:
    """
    Raise Refused for a command that is not allowed. `name` is whose token it is, empty for nobody;
    `is_private`: nobody else reads the connection.
    """
    if not is_private:
        raise Refused(403, NOT_PRIVATE)
    if not name:
        raise Refused(401, WRONG_TOKEN if token else NO_TOKEN)


def host_name(host: str) -> str:
    """Return the name in a Host header without its port, lower case; empty for none."""
    if host.startswith('['):
        return host[1:].partition(']')[0].lower()
    name, colon, port = host.rpartition(':')
    return (name if colon and port.isdigit() else host).lower()


def is_known_host(host: str, names: frozenset[str]) -> bool:
    """
    Return whether a Host header is of this site: a name of `names`, or an address. A foreign name
    that resolves to this machine is how a web page elsewhere would read the dashboard.
    """
    name = host_name(host)
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str, host: str, *, is_tls: bool) -> bool:
    """Return whether the Origin header names the site of the Host header."""
    return origin.lower() == f'{"https" if is_tls else "http"}://{host.lower()}'


FOLDER = Path(__file__).parent.parent / 'page'
INDEX = 'index.html'
KINDS = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css'}
FILES = ('uPlot.iife.min.js', 'uPlot.min.css')


@dataclass(frozen=True, slots=True)
class Page:
    """Content and type of each file by its path, and the policy that they are sent with."""

    files: dict[str, tuple[bytes, str]]
    policy: str


class _Inline(HTMLParser):
    """Collects the texts of inline scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._open: list[str] | None = None
        self._parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == 'script' and 'src' not in dict(attrs):
            self._open, self._parts = self.scripts, []
        if tag == 'style':
            self._open, self._parts = self.styles, []

    def handle_data(self, data: str) -> None:
        self._parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ('script', 'style') and self._open is not None:
            self._open.append(''.join(self._parts))
            self._open = None


def read_page(folder: Path = FOLDER) -> Page:
    """Return the page. Raises UserError when a file of the installation is missing."""
    try:
        found = {f'/{name}': _file(folder / name) for name in FILES if (folder / name).exists()}
        index = _file(folder / INDEX)
    except OSError as error:
        raise UserError(
            f'the page of the dashboard is not installed: {error.filename}: {error.strerror}; '
            'install lerobot_serve again'
        ) from error
    return Page({'/': index, **found}, content_policy(index[0].decode()))


def _file(path: Path) -> tuple[bytes, str]:
    return path.read_bytes(), f'{KINDS[path.suffix]}; charset=utf-8'


def content_policy(index: str) -> str:
    """Return the content security policy for an index.html."""
    inline = _Inline()
    # a browser hashes a text with its line ends normalised
    inline.feed(index.replace('\r\n', '\n'))
    inline.close()
    return '; '.join(
        (
            "default-src 'none'",
            f"script-src 'self'{hashes(inline.scripts)}",
            f"style-src 'self'{hashes(inline.styles)}",
            "connect-src 'self'",
            "img-src 'self' blob: data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def hashes(texts: Iterable[str]) -> str:
    """Return the hash sources of inline texts, each with a space before it."""
    digests = (base64.b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return ''.join(f" 'sha256-{digest}'" for digest in digests)


BASE_HEADERS = {
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
    'Cross-Origin-Resource-Policy': 'same-origin',
    'Cross-Origin-Opener-Policy': 'same-origin',
    'X-Frame-Options': 'DENY',
}


def error_reply(status: int, text: str) -> web.Response:
    return web.json_response({'error': text}, status=status)


def guard(names: frozenset[str]) -> Middleware:
    """Return the middleware; `names` are the host names of this site."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_known_host(request.headers.get('Host', ''), names):
            return error_reply(
                421,
                'this host name is not one of the dashboard; use its address, or start it with '
                '--host-name',
            )
        try:
            return await handler(request)
        except Refused as refused:
            return error_reply(refused.status, refused.text)
        except web.HTTPRequestEntityTooLarge:
            return error_reply(413, 'the body is too large; a command has at most 16 KiB')
        except web.HTTPException as error:
            return error_reply(
                error.status, f'{request.method} {error.reason}; see docs/dashboard.md'
            )
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return error_reply(500, 'the dashboard failed; its log has the cause')

    return guarded


def add_headers(policy: str) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the signal handler that adds headers to each reply, before it is sent."""

    async def on_prepare(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(BASE_HEADERS)
        response.headers['Content-Security-Policy'] = policy
        # the versions of this machine stay private
        response.headers['Server'] = 'lerobot_serve'

    return on_prepare

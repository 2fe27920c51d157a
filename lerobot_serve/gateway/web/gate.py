# SPDX-License-Identifier: Apache-2.0
"""
Whom a door over HTTP lets in: callers with a token, and no page of a web browser.

A browser sends requests to 127.0.0.1 for every page that asks; such a page has an Origin, and a
host name of its own that resolves to this machine. The event loop calls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
import ipaddress
import time
from urllib.parse import SplitResult, urlsplit

from aiohttp import web

from lerobot_serve.access.token_file import WrongTokens
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.core import Gateway

KEYS_LIMIT = 1024
SCHEMES = ('bearer', 'api-key')
NO_TOKEN = (
    'this door needs a token: send the header "Authorization: Bearer TOKEN" or '
    '"Authorization: Api-Key TOKEN" with a token of its tokens_file'
)
WRONG_TOKEN = 'the token is wrong: compare it with the tokens_file of the door'
FROM_A_PAGE = (
    'requests of web pages are refused (header {header} is {given!r}); send it from a program, '
    'to an address of this machine'
)


class ForbiddenOrigin(Exception):
    """A request that a web page of another site may have caused; the text says what to do."""


class Gate:
    """Checks the head of each request of one door."""

    def __init__(
        self,
        gateway: Gateway,
        exposure: Exposure,
        on_let_in: Callable[[web.Request], object] = lambda request: None,
    ) -> None:
        """`on_let_in` is called with each request whose caller is let in."""
        self._gateway, self._exposure, self._on_let_in = gateway, exposure, on_let_in
        self.wrong_tokens = WrongTokens()

    def check_origin(self, request: web.Request) -> None:
        """Raise ForbiddenOrigin for a request of a web page; counted."""
        host, origin = request.headers.get('Host', ''), request.headers.get('Origin')
        header, given = '', ''
        if origin is not None and _split(origin).netloc.lower() != host.lower():
            header, given = 'Origin', origin
        elif not self._exposure.needs_token and not self._is_own_host(host):
            header, given = 'Host', host
        if header:
            self._gateway.on_refused(self._exposure.door, 'web_page')
            raise ForbiddenOrigin(FROM_A_PAGE.format(header=header, given=given[:120]))

    def _is_own_host(self, host: str) -> bool:
        """
        Return whether a Host header is an address, localhost, or the host of the parameter. Where
        no token is needed, another name may be that of a page which resolves to this machine.
        """
        name = _split(f'//{host}').hostname or ''
        if name in ('localhost', self._exposure.host.lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            # where everybody is let in, names of this machine are not known
            return not self._exposure.is_loopback
        return True

    async def name_of(self, request: web.Request) -> str:
        """
        Return the name of the token of a request, empty where no token is needed. Raises
        PredictionError (UNAUTHORIZED), for a wrong token after a while.
        """
        if not self._exposure.needs_token:
            self._on_let_in(request)
            return ''
        scheme, _, token = request.headers.get('Authorization', '').partition(' ')
        token = token.strip() if scheme.lower() in SCHEMES else ''
        if name := self._exposure.name_of(token):
            self._on_let_in(request)
            return name
        self._gateway.on_refused(self._exposure.door, 'unauthorized')
        if token:
            address, now_s = request.remote or '?', time.monotonic()
            self.wrong_tokens.note(address, now_s)
            await asyncio.sleep(self.wrong_tokens.delay_s(address, now_s))
        raise PredictionError(Status.UNAUTHORIZED, WRONG_TOKEN if token else NO_TOKEN)


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; none of one that cannot be read, such as http://[::1."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult('', '', '', '', '')


class Once:
    """Whether something is said for the first time; the oldest keys are forgotten."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, None] = OrderedDict()

    def is_first(self, key: str) -> bool:
        """Return true once for each key."""
        if key in self._said:
            return False
        self._said[key] = None
        if len(self._said) > KEYS_LIMIT:
            self._said.popitem(last=False)
        return True

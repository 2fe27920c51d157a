# SPDX-License-Identifier: Apache-2.0
"""What holds for every request: the Host header, the headers of replies, errors as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
import sys
import traceback

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lerobot_serve.tools.dashboard.access import is_known_host, Refused

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

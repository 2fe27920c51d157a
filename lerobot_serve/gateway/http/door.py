# SPDX-License-Identifier: Apache-2.0
"""
The door for programs that speak HTTP: POST /act, GET /health, /config, /openapi.json and a page.

The event loop of the gateway runs it; a large body is decoded in a thread of act.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

import lerobot_serve
from lerobot_serve.access.connections import Connections
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.http.act import ActRoute
from lerobot_serve.gateway.http.fields import FieldError
from lerobot_serve.gateway.http.openapi import document
from lerobot_serve.gateway.http.page import page
from lerobot_serve.gateway.http.replies import (
    config_content,
    error_reply,
    refusal,
    Refused,
)
from lerobot_serve.gateway.web.gate import ForbiddenOrigin, Gate
from lerobot_serve.gateway.web.settings import WebSettings
from lerobot_serve.gateway.web.site import Site


def make_door(gateway: Gateway, exposure: Exposure, settings: Mapping[str, Any]) -> HttpDoor:
    """Return the door. Raises UserError."""
    return HttpDoor(gateway, exposure, WebSettings.from_parameters(settings))


class HttpDoor:
    """See the module."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: WebSettings) -> None:
        """Raise UserError for a mapping file that cannot be used."""
        self._gateway, self._exposure, self._settings = gateway, exposure, settings
        self._on_refused = partial(gateway.on_refused, exposure.door)
        bounds = Connections(settings.max_connections, self._on_refused)
        self._gate = Gate(gateway, exposure, bounds.let_in)
        self._act = ActRoute(gateway, exposure, settings, self._gate)
        self._description = document(lerobot_serve.__version__, needs_token=exposure.needs_token)
        application = web.Application(
            client_max_size=settings.max_message_bytes,
            middlewares=[bounds.middleware(), self._guard()],
        )
        application.on_response_prepare.append(bound_unread_bytes)
        application.router.add_post('/act', self._act.handle)
        for path, handler in (
            ('/', self._page),
            ('/health', self._health),
            ('/config', self._config),
            ('/openapi.json', self._openapi),
        ):
            application.router.add_get(path, handler)
        self._site = Site(exposure, application, bounds, partial(self._on_refused, 'malformed'))

    @property
    def address(self) -> str:
        """Return the URL that a client is given."""
        return self._site.address

    async def start(self) -> None:
        """Listen. Raises UserError."""
        await self._site.start()

    async def stop(self) -> None:
        """Close the site and its connections. May be called twice."""
        await self._site.stop()
        self._act.close()

    def _guard(self) -> Any:
        """Return the middleware that turns errors into replies."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                self._check_connections(request)
                self._gate.check_origin(request)
                return await self._sent(request, await handler(request))
            except PredictionError as error:
                if isinstance(error, FieldError):
                    self._on_refused('malformed')
                return error_reply(error)
            except ForbiddenOrigin as error:
                return refusal(Refused(403, 'web_page', str(error)))
            except Refused as refused:
                return refusal(refused)
            except web.HTTPException as error:
                text = f'{request.method} {request.path[:80]}: {error.reason}; GET / describes all'
                response = refusal(Refused(error.status, 'not_found', text))
                if allowed := error.headers.get('Allow'):
                    response.headers['Allow'] = allowed
                return response

        return guarded

    def _check_connections(self, request: web.Request) -> None:
        """Raise Refused above the limit; the connection ends with it."""
        if count := self._site.excess(request):
            self._on_refused('max_connections')
            limit = self._settings.max_connections
            text = f'{count} connections are open, max_connections is {limit}; retry later'
            raise Refused(503, 'max_connections', text)

    async def _sent(
        self, request: web.Request, response: web.StreamResponse
    ) -> web.StreamResponse:
        """Send a reply; disconnect a client that does not read it in time."""
        transport = request.transport
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            self._on_refused('stopped_reading')
            if transport:
                transport.abort()
        return response

    # routes

    async def _page(self, _: web.Request) -> web.Response:
        text = page(self._description, self.address)
        return web.Response(text=text, content_type='text/html')

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(self._description)

    async def _health(self, _: web.Request) -> web.Response:
        await self._gateway.describe()
        return web.json_response({'status': 'ok', 'note': NO_CAGE})

    async def _config(self, request: web.Request) -> web.Response:
        await self._gate.name_of(request)
        contract = await self._gateway.describe()
        return web.json_response(config_content(contract, self._limits()))

    def _limits(self) -> dict[str, Any]:
        limits = asdict(self._settings)
        del limits['mapping']
        return limits | {'request_timeout_s': self._gateway.settings.request_timeout_s}


async def bound_unread_bytes(request: web.Request, _: web.StreamResponse) -> None:
    """Let the end of a reply wait until the system has taken all of it."""
    if isinstance(request.transport, asyncio.Transport):
        request.transport.set_write_buffer_limits(high=0)

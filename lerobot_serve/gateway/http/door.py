# SPDX-License-Identifier: Apache-2.0
"""
The door for programs that speak HTTP: POST /act, GET /health, /config, /openapi.json and a page.

The event loop of the gateway runs it; a large body is decoded in a thread of the door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

import lerobot_serve
from lerobot_serve.access.connections import Connections
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.caller import Caller, NO_CAGE
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.http import openapi
from lerobot_serve.gateway.http.body import ActBody, read_body, request_of
from lerobot_serve.gateway.http.callers import caller_of, EpisodeCallers, Once
from lerobot_serve.gateway.http.fields import FieldError
from lerobot_serve.gateway.http.replies import (
    config_content,
    error_reply,
    NO_EPISODE,
    prediction_reply,
    refusal,
)
from lerobot_serve.gateway.mapping import read_mapping
from lerobot_serve.gateway.predictions import PredictionError, Status
from lerobot_serve.gateway.upstream import UpstreamSession
from lerobot_serve.gateway.web.gate import ForbiddenOrigin, Gate
from lerobot_serve.gateway.web.settings import WebSettings
from lerobot_serve.gateway.web.site import Site

# larger bodies take longer than a millisecond
INLINE_BYTES = 1 << 18
JSON_TYPE = 'application/json'


def make_door(gateway: Gateway, exposure: Exposure, settings: Mapping[str, Any]) -> HttpDoor:
    """Return the door. Raises UserError."""
    return HttpDoor(gateway, exposure, WebSettings.from_parameters(settings))


class HttpDoor:
    """See the module."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: WebSettings) -> None:
        """Raise UserError for a mapping file that cannot be used."""
        self._gateway, self._exposure, self._settings = gateway, exposure, settings
        self._mapping = read_mapping(settings.mapping_file)
        self._gate = Gate(gateway, exposure)
        self._episodes, self._warned = EpisodeCallers(), Once()
        self._on_refused = partial(gateway.on_refused, exposure.door)
        self._description = openapi.document(
            lerobot_serve.__version__, needs_token=exposure.needs_token
        )
        self._decoder = ThreadPoolExecutor(1, 'http_decoder')
        bounds = Connections(settings.max_connections, partial(self._on_refused, 'no_request'))
        application = web.Application(
            client_max_size=settings.max_message_bytes,
            middlewares=[bounds.middleware(), self._guard()],
        )
        application.router.add_post('/act', self._act)
        for path, handler in (
            ('/', self._page),
            ('/health', self._health),
            ('/config', self._config),
            ('/openapi.json', self._openapi),
        ):
            application.router.add_get(path, handler)
        self._site = Site(exposure, application, bounds)

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
        self._decoder.shutdown(wait=True, cancel_futures=True)

    def _guard(self) -> Any:
        """Return the middleware that turns errors into replies."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                self._gate.check_origin(request)
                return await handler(request)
            except PredictionError as error:
                if isinstance(error, FieldError):
                    self._on_refused('malformed')
                return error_reply(error)
            except ForbiddenOrigin as error:
                return refusal(403, 'web_page', str(error), {})
            except web.HTTPException as error:
                allowed = {'Allow': error.headers['Allow']} if 'Allow' in error.headers else {}
                text = f'{request.method} {request.path[:80]}: {error.reason}; GET / describes all'
                return refusal(error.status, 'not_found', text, allowed)

        return guarded

    # routes

    async def _page(self, _: web.Request) -> web.Response:
        text = openapi.page(self._description, self.address)
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
        del limits['mapping_file']
        return limits | {'request_timeout_s': self._gateway.settings.request_timeout_s}

    async def _act(self, request: web.Request) -> web.Response:
        token_name = await self._gate.name_of(request)
        data = await self._read(request)
        if isinstance(data, web.Response):
            return data
        body = await self._decoded(data)
        host = request.remote or '?'
        caller = caller_of(self._exposure.door, host, token_name, body.client_id, body.episode_id)
        session = await self._session(caller, body)
        wanted = request_of(body, self._mapping, session.contract)
        prediction = await session.predict(wanted)
        warns = not body.episode_id and self._warned.is_first(caller.client_id)
        if warns:
            self._gateway.warn(f'{caller.client_id}: {NO_EPISODE}')
        key = body.episode_id or caller.client_id
        return prediction_reply(body, prediction, session.contract, key=key, warns=warns)

    async def _read(self, request: web.Request) -> bytes | web.Response:
        """Return the body, or the refusal of one that is too large, too slow or of no JSON."""
        limit = self._settings.max_message_bytes
        if request.content_type != JSON_TYPE:
            self._on_refused('no_json')
            return refusal(415, 'no_json', f'send the header "Content-Type: {JSON_TYPE}"', {})
        try:
            if (request.content_length or 0) > limit:
                raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
            async with asyncio.timeout(self._settings.read_timeout_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            self._on_refused('too_big')
            text = (
                f'the body has {request.content_length or "too many"} bytes, {limit} are allowed; '
                'send images as JPEG, or raise max_message_bytes of the door'
            )
            return refusal(413, 'too_big', text, {'Retry-After': '1'})
        except TimeoutError:
            self._on_refused('slow')
            limit_s = self._settings.read_timeout_s
            return refusal(408, 'slow', f'the body did not arrive within {limit_s:g} s', {})

    async def _decoded(self, data: bytes) -> ActBody:
        """Return the content of a body. Raises FieldError."""
        if len(data) <= INLINE_BYTES:
            return read_body(data)
        return await asyncio.get_running_loop().run_in_executor(self._decoder, read_body, data)

    async def _session(self, caller: Caller, body: ActBody) -> UpstreamSession:
        """Return the session of a caller; one of an idle episode gives way. Raises the error."""
        is_by_episode = bool(body.episode_id) and not body.client_id
        now_s = time.monotonic()
        try:
            session = await self._gateway.session(caller)
        except PredictionError as error:
            self._episodes.keep(self._gateway.callers)
            idle = self._episodes.take_idle(now_s)
            if error.status != Status.OVERLOADED or idle is None:
                raise
            await self._gateway.release(idle)
            session = await self._gateway.session(caller)
        if is_by_episode:
            self._episodes.note(caller, now_s)
        return session

# SPDX-License-Identifier: Apache-2.0
"""
The door for programs that speak HTTP: POST /act, GET /health, /config, /openapi.json and a page.

The event loop of the gateway runs it; a large body, or one of large pictures, is decoded in a
thread of this endpoint.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
import contextlib
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

import lerobot_serve
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller, NO_CAGE
from lerobot_serve.gateway.callers.mapping import read_mapping
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.http.body import ActBody, read_body, request_of
from lerobot_serve.gateway.http.fields import FieldError
from lerobot_serve.gateway.http.images import ManyPixels
from lerobot_serve.gateway.http.openapi import document, page
from lerobot_serve.gateway.http.replies import (
    config_content,
    error_reply,
    NO_EPISODE,
    prediction_reply,
    refusal,
)
from lerobot_serve.gateway.web.endpoint import Once, Refused, WebEndpoint

# larger bodies, and more pixels in a small one, take longer than a few milliseconds
INLINE_BYTES, INLINE_PIXELS = 1 << 18, 1 << 18
# what GET /config tells of the settings
LIMITS = ('max_message_mb', 'read_timeout_s', 'write_timeout_s', 'max_connections')
JSON_TYPE = 'application/json'
SMALLER = 'send images as JPEG, or raise max_message_mb of the door'


class HttpDoor(WebEndpoint):
    """See the module."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: EndpointSettings) -> None:
        """Raise UserError for a mapping file that cannot be used."""
        application = web.Application(
            client_max_size=settings.max_message_bytes, middlewares=[self._guard()]
        )
        super().__init__(gateway, exposure, settings, application)
        self._mapping, self._warned = read_mapping(settings.mapping), Once()
        self._decoder = ThreadPoolExecutor(1, 'http_decoder')
        self._description = document(lerobot_serve.__version__, needs_token=exposure.needs_token)
        application.on_response_prepare.append(bound_unread_bytes)
        application.router.add_post('/act', self._act)
        for path, handler in (
            ('/', self._page),
            ('/health', self._health),
            ('/config', self._config),
            ('/openapi.json', self._openapi),
        ):
            application.router.add_get(path, handler)

    async def stop(self) -> None:
        """Close the site and its connections. May be called twice."""
        await super().stop()
        self._decoder.shutdown(wait=True, cancel_futures=True)

    def _guard(self) -> Any:
        """Return the middleware that turns errors into replies."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                self._check_connections(request)
                self._check_origin(request)
                return await self._sent(request, await handler(request))
            except PredictionError as error:
                if isinstance(error, FieldError):
                    self._on_refused('malformed')
                return error_reply(error)
            except Refused as refused:
                # the site counts what is no HTTP at all
                if refused.reason != 'malformed':
                    self._on_refused(refused.reason)
                return refusal(refused.status, refused.reason, refused.text)
            except web.HTTPException as error:
                text = f'{request.method} {request.path[:80]}: {error.reason}; GET / describes all'
                response = refusal(error.status, 'not_found', text)
                if allowed := error.headers.get('Allow'):
                    response.headers['Allow'] = allowed
                return response

        return guarded

    def _check_connections(self, request: web.Request) -> None:
        """Raise Refused above the limit; the connection ends with it."""
        if count := self._excess(request):
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

    async def _act(self, request: web.Request) -> web.Response:
        """Answer a request. Raises PredictionError and Refused."""
        token_name = await self._name_of(request)
        body = await self._decoded(await self._read(request))
        caller = caller_of(
            self._exposure.door,
            request.remote or '?',
            token_name=token_name,
            client_id=body.client_id,
            episode_id=body.episode_id,
        )
        session = await self._gateway.session(caller)
        wanted = request_of(body, self._mapping, session.contract)
        prediction = await session.predict(wanted)
        return prediction_reply(
            body,
            prediction,
            session.contract,
            warns=self._warns(caller, body),
        )

    def _warns(self, caller: Caller, body: ActBody) -> bool:
        """Return whether a caller is warned now: once, and in the log too."""
        warns = not body.episode_id and self._warned.is_first(caller.client_id)
        if warns:
            self._gateway.log.warning(f'{caller.client_id}: {NO_EPISODE}')
        return warns

    async def _read(self, request: web.Request) -> bytes:
        """Return the body. Raises Refused for one that is too large, too slow, or no JSON."""
        limit = self._settings.max_message_bytes
        if request.content_type != JSON_TYPE:
            raise Refused(415, 'no_json', f'send the header "Content-Type: {JSON_TYPE}"')
        try:
            if (request.content_length or 0) > limit:
                raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
            async with asyncio.timeout(self._settings.read_timeout_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            text = f'{size_text(request)}, {limit} are allowed; {SMALLER}'
            raise Refused(413, 'too_big', text) from None
        except web.RequestPayloadError as error:
            raise Refused(400, 'malformed', f'the body cannot be read: {error}') from None
        except TimeoutError:
            limit_s = self._settings.read_timeout_s
            raise Refused(408, 'slow', f'the body did not arrive within {limit_s:g} s') from None

    async def _decoded(self, data: bytes) -> ActBody:
        """Return the content of a body. Raises FieldError."""
        if len(data) <= INLINE_BYTES:
            with contextlib.suppress(ManyPixels):
                return read_body(data, INLINE_PIXELS)
        return await asyncio.get_running_loop().run_in_executor(self._decoder, read_body, data)

    async def _page(self, _: web.Request) -> web.Response:
        text = page(self._description, self.address)
        return web.Response(text=text, content_type='text/html')

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(self._description)

    async def _health(self, _: web.Request) -> web.Response:
        await self._gateway.describe()
        return web.json_response({'status': 'ok', 'note': NO_CAGE})

    async def _config(self, request: web.Request) -> web.Response:
        await self._name_of(request)
        contract = await self._gateway.describe()
        return web.json_response(config_content(contract, self._limits()))

    def _limits(self) -> dict[str, Any]:
        limits = {name: getattr(self._settings, name) for name in LIMITS}
        return limits | {'request_timeout_s': self._gateway.settings.request_timeout_s}


def caller_of(
    protocol: str, host: str, *, token_name: str, client_id: str, episode_id: str
) -> Caller:
    """
    Return who asks. A caller that names itself (`client_id`) has one session. Without a name, each
    episode_id of a host is a session of its own; with neither, all requests of a host share one.
    The name of the token is part of it: nobody takes another's session.
    """
    own = client_id or episode_id
    name = '/'.join(filter(None, (token_name, own)))
    # an episode is not an owner of episodes
    who = '/'.join(filter(None, (token_name, client_id)))
    return Caller(protocol, host, name, owner=f'{host}/{who}')


def size_text(request: web.Request) -> str:
    """Return how large a body is that is too large, as far as it was read."""
    sent = request.content_length
    encoding = request.headers.get('Content-Encoding', '')
    if encoding:
        size = f'{sent} bytes' if sent else 'bytes of unknown number'
        return f'the body is {size} of {encoding[:16]!r} and larger than allowed when unpacked'
    return f'the body has {sent} bytes' if sent else 'the body has more bytes than allowed'


async def bound_unread_bytes(request: web.Request, _: web.StreamResponse) -> None:
    """Let the end of a reply wait until the system has taken all of it."""
    if isinstance(request.transport, asyncio.Transport):
        request.transport.set_write_buffer_limits(high=0)

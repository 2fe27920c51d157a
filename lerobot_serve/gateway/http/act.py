# SPDX-License-Identifier: Apache-2.0
"""
POST /act: reads and decodes a body, finds the session of its caller, and asks it.

The event loop calls; a large body, or one of large pictures, is decoded in a thread of this route.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
import contextlib
from functools import partial

from aiohttp import web

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.mapping import read_mapping
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.http.body import ActBody, read_body, request_of
from lerobot_serve.gateway.http.images import ManyPixels
from lerobot_serve.gateway.http.replies import NO_EPISODE, prediction_reply, Refused
from lerobot_serve.gateway.web.gate import Gate, Once
from lerobot_serve.gateway.web.settings import WebSettings

# larger bodies, and more pixels in a small one, take longer than a few milliseconds
INLINE_BYTES, INLINE_PIXELS = 1 << 18, 1 << 18
JSON_TYPE = 'application/json'
SMALLER = 'send images as JPEG, or raise max_message_mb of the door'


class ActRoute:
    """See the module."""

    def __init__(
        self, gateway: Gateway, exposure: Exposure, settings: WebSettings, gate: Gate
    ) -> None:
        """Raise UserError for a mapping file that cannot be used."""
        self._gateway, self._exposure, self._settings = gateway, exposure, settings
        self._mapping, self._gate = read_mapping(settings.mapping), gate
        self._warned = Once()
        self._on_refused = partial(gateway.on_refused, exposure.door)
        self._decoder = ThreadPoolExecutor(1, 'http_decoder')

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._decoder.shutdown(wait=True, cancel_futures=True)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request. Raises PredictionError and Refused."""
        token_name = await self._gate.name_of(request)
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
            self._gateway.warn(f'{caller.client_id}: {NO_EPISODE}')
        return warns

    async def _read(self, request: web.Request) -> bytes:
        """Return the body. Raises Refused for one that is too large, too slow, or no JSON."""
        limit = self._settings.max_message_bytes
        if request.content_type != JSON_TYPE:
            self._on_refused('no_json')
            raise Refused(415, 'no_json', f'send the header "Content-Type: {JSON_TYPE}"')
        try:
            if (request.content_length or 0) > limit:
                raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
            async with asyncio.timeout(self._settings.read_timeout_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            self._on_refused('too_big')
            text = f'{size_text(request)}, {limit} are allowed; {SMALLER}'
            raise Refused(413, 'too_big', text) from None
        except web.RequestPayloadError as error:
            # counted by the site, as what is no HTTP at all
            raise Refused(400, 'malformed', f'the body cannot be read: {error}') from None
        except TimeoutError:
            self._on_refused('slow')
            limit_s = self._settings.read_timeout_s
            raise Refused(408, 'slow', f'the body did not arrive within {limit_s:g} s') from None

    async def _decoded(self, data: bytes) -> ActBody:
        """Return the content of a body. Raises FieldError."""
        if len(data) <= INLINE_BYTES:
            with contextlib.suppress(ManyPixels):
                return read_body(data, INLINE_PIXELS)
        return await asyncio.get_running_loop().run_in_executor(self._decoder, read_body, data)


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
    # an episode is no owner of episodes
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

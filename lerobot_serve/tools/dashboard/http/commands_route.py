# SPDX-License-Identifier: Apache-2.0
"""POST /api/commands: who may send one, and what it is. The event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import time

from aiohttp import web

from lerobot_serve.access.token_file import Tokens, WrongTokens
from lerobot_serve.errors import UserError
from lerobot_serve.files.parsing import from_json
from lerobot_serve.tools.dashboard.access.rules import access, is_same_origin, TokenState
from lerobot_serve.tools.dashboard.commands.request import command_request, CommandRequest, Reply
from lerobot_serve.tools.dashboard.http.guards import Refused

BODY_LIMIT_S, WAITING = 5.0, 16
BEARER, JSON_TYPE = 'Bearer ', 'application/json'


RunCommand = Callable[[CommandRequest, str, str], Reply]


@dataclass(frozen=True, slots=True)
class SiteAccess:
    """How the dashboard is reached."""

    is_loopback: bool
    is_tls: bool


class CommandsRoute:
    """`run` is called in a thread of `threads` with the command, the name and the address."""

    def __init__(
        self, site: SiteAccess, tokens: Tokens, run: RunCommand, threads: ThreadPoolExecutor
    ) -> None:
        self._site, self._tokens, self._run, self._threads = site, tokens, run, threads
        self.wrong_tokens = WrongTokens()
        self._running = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Preview or run a command. Raises Refused."""
        if request.content_type != JSON_TYPE:
            raise Refused(415, f'a command has the Content-Type {JSON_TYPE}')
        origin, host = request.headers.get('Origin', ''), request.headers.get('Host', '')
        if not is_same_origin(origin, host, is_tls=self._site.is_tls):
            raise Refused(
                403, 'a command must come from the page of this dashboard (header Origin)'
            )
        name = await self._name(request)
        command = await self._command(request)
        if self._running >= WAITING:
            raise Refused(503, f'{WAITING} commands run; look at their effects first')
        self._running += 1
        try:
            reply = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._run, command, name, request.remote or '?'
            )
        finally:
            self._running -= 1
        return web.json_response(reply.body, status=reply.status)

    async def _name(self, request: web.Request) -> str:
        """Return who sends the command. Raises Refused, for a wrong token after a while."""
        given = request.headers.get('Authorization', '')
        token = given[len(BEARER) :] if given.startswith(BEARER) else ''
        name = self._tokens.name_of(token)
        state = TokenState.RIGHT if name else TokenState.WRONG if token else TokenState.NONE
        verdict = access(state, is_loopback=self._site.is_loopback, is_tls=self._site.is_tls)
        if verdict.status == 401 and state is TokenState.WRONG:
            address, now_s = request.remote or '?', time.monotonic()
            self.wrong_tokens.note(address, now_s)
            await asyncio.sleep(self.wrong_tokens.delay_s(address, now_s))
        if verdict.status != 200:
            raise Refused(verdict.status, verdict.text)
        return name

    async def _command(self, request: web.Request) -> CommandRequest:
        """Return the command in the body. Raises Refused."""
        try:
            text = await asyncio.wait_for(request.read(), BODY_LIMIT_S)
            return command_request(from_json(text))
        except TimeoutError:
            raise Refused(408, f'the body did not arrive within {BODY_LIMIT_S:g} s') from None
        except UserError as error:
            raise Refused(400, str(error)) from None
        except ValueError:
            raise Refused(400, 'the body is not JSON') from None

# SPDX-License-Identifier: Apache-2.0
"""POST /api/commands: who may send one, and what it is. The event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import time

from aiohttp import web

from lerobot_serve.access.token_file import Tokens, WrongTokens
from lerobot_serve.errors import UserError
from lerobot_serve.files.parsing import from_json
from lerobot_serve.tools.dashboard.access import check_access, is_same_origin, Refused
from lerobot_serve.tools.dashboard.planned_commands import command_request, CommandRequest, Reply

BODY_LIMIT_S, WAITING = 5.0, 16
BEARER, JSON_TYPE = 'Bearer ', 'application/json'


RunCommand = Callable[[CommandRequest, str, str], Reply]


class CommandsRoute:
    """
    `run` is called in a thread of `threads` with the command, the name and the address;
    `is_private`: the dashboard is reached by TLS, or on this machine alone.
    """

    def __init__(
        self,
        tokens: Tokens,
        run: RunCommand,
        threads: ThreadPoolExecutor,
        *,
        is_private: bool,
        is_tls: bool = False,
    ) -> None:
        self._tokens, self._run, self._threads = tokens, run, threads
        self._is_private, self._is_tls = is_private, is_tls
        self.wrong_tokens = WrongTokens()
        self._running = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Preview or run a command. Raises Refused."""
        if request.content_type != JSON_TYPE:
            raise Refused(415, f'a command has the Content-Type {JSON_TYPE}')
        origin, host = request.headers.get('Origin', ''), request.headers.get('Host', '')
        if not is_same_origin(origin, host, is_tls=self._is_tls):
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
        if self._is_private and token and not name:
            address, now_s = request.remote or '?', time.monotonic()
            self.wrong_tokens.note(address, now_s)
            await asyncio.sleep(self.wrong_tokens.delay_s(address, now_s))
        check_access(token, name, is_private=self._is_private)
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

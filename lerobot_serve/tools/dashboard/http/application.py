# SPDX-License-Identifier: Apache-2.0
"""
The routes of the dashboard, with POST /api/commands: who may send one, and what it is. The event
loop's thread; what takes long runs in other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import json
import os
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from lerobot_serve.access.connections import Connections
from lerobot_serve.access.token_file import Tokens, WrongTokens
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.errors import UserError
from lerobot_serve.files.parsing import from_json
from lerobot_serve.tools.dashboard.document.fleet_document import Json, Turn
from lerobot_serve.tools.dashboard.evidence import Captures
from lerobot_serve.tools.dashboard.http.guards import (
    add_headers,
    check_access,
    guard,
    is_same_origin,
    Page,
    Refused,
)
from lerobot_serve.tools.dashboard.http.viewers import RobotStreams, Stream
from lerobot_serve.tools.dashboard.planned_commands import command_request, CommandRequest, Reply
from lerobot_serve.tools.dashboard.robot_messages import jpeg_of, LastRequests
from lerobot_serve.tools.dashboard.robot_window import Heard

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


BODY_BYTES, VIEWERS, PIECE_BYTES = 16 << 10, 64, 1 << 18


@dataclass(frozen=True, slots=True)
class Sources:
    """
    What the routes read beside the document. `explain` blocks and returns None for an incident
    that is not there; the others return at once.
    """

    evidence: Callable[[str], Json | None]
    requests: Callable[[str], LastRequests | None]
    want_robots: Callable[[frozenset[str]], None]
    explain: Callable[[str], Json | None]
    captures: Captures


class Application:
    """Builds the aiohttp application of one dashboard, and holds its viewers."""

    def __init__(
        self,
        page: Page,
        document: Json,
        names: frozenset[str],
        sources: Sources,
        commands: CommandsRoute,
        threads: ThreadPoolExecutor,
    ) -> None:
        """`names` are the host names of this site."""
        self._document, self._sources, self._threads = document, sources, threads
        self.fleet = Stream(lambda: self._document)
        self.robots = RobotStreams(self._robot_row, sources.want_robots)
        self.connections = Connections()
        self.web = web.Application(
            client_max_size=BODY_BYTES,
            middlewares=[self.connections.middleware(), guard(names)],
        )
        self.web.on_response_prepare.append(add_headers(page.policy))
        self._add_routes(page, commands)

    def _add_routes(self, page: Page, commands: CommandsRoute) -> None:
        routes: dict[str, Handler] = {
            '/healthz': self._health,
            '/api/stream': self._stream,
            '/api/routers/history': self._history,
            '/api/robots/stream': self._robot,
            '/api/robots/image': self._image,
            '/api/incidents': self._incident,
            '/api/captures': self._capture,
        }
        routes |= {path: _sender(*file) for path, file in page.files.items()}
        for path, handler in routes.items():
            self.web.router.add_get(path, handler)
        self.web.router.add_post('/api/commands', commands.handle)

    @property
    def viewer_count(self) -> int:
        """How many look at the fleet. Any thread."""
        return self.fleet.viewer_count

    # from the threads of ROS, by HttpServer.call

    def on_turn(self, turn: Turn) -> None:
        """Send a turn of the document."""
        self._document = turn.document
        self.fleet.publish('patch', turn.patch)
        self.robots.on_document()

    def on_heard(self, robot: str, heard: Heard) -> None:
        """Send what was heard of a robot."""
        self.robots.on_heard(robot, heard)

    def end(self) -> None:
        """End all streams."""
        self.fleet.end()
        self.robots.end()

    def _robot_row(self, robot: str) -> Json | None:
        row: Json | None = self._document['robots'].get(robot)
        return row

    # routes

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text='alive\n')

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self._check_viewers()
        return await self.fleet.serve(request)

    def _check_viewers(self) -> None:
        if self.fleet.viewer_count + self.robots.viewer_count >= VIEWERS:
            self.fleet.counts.refused += 1
            raise Refused(
                503, f'{VIEWERS} viewers are connected, which is the limit; close one and reload'
            )

    async def _history(self, request: web.Request) -> web.Response:
        router = _argument(request, 'router')
        found = self._sources.evidence(router)
        if found is None:
            raise Refused(404, f'no router {router[:80]!r} is heard of; see /api/stream')
        return _json(found)

    async def _robot(self, request: web.Request) -> web.StreamResponse:
        self._check_viewers()
        return await self.robots.serve(request, _argument(request, 'robot'))

    async def _image(self, request: web.Request) -> web.Response:
        requests = self._sources.requests(_argument(request, 'robot'))
        if requests is None:
            raise Refused(
                404, 'images are kept while the view of the robot is open; open its view'
            )
        seq, camera = _argument(request, 'seq'), _argument(request, 'camera')
        raw = requests.get(int(seq)) if seq.isdecimal() and len(seq) < 20 else None
        if raw is None:
            raise Refused(404, f'request {seq[:20]!r} is no longer kept; take the newest')
        try:
            image = await self._in_thread(jpeg_of, raw, camera)
        except (Malformed, ValueError) as error:
            raise Refused(422, f'the image cannot be shown: {error}') from None
        if image is None:
            raise Refused(404, f'the request has no camera {camera[:80]!r}')
        return web.Response(body=image, content_type='image/jpeg')

    async def _incident(self, request: web.Request) -> web.Response:
        found = await self._in_thread(self._sources.explain, _argument(request, 'id'))
        if found is None:
            raise Refused(404, 'this incident is no longer kept; the newest 200 are')
        return _json(found)

    async def _capture(self, request: web.Request) -> web.StreamResponse:
        name = _argument(request, 'name')
        opened = await self._in_thread(self._sources.captures.open, name)
        if opened is None:
            raise Refused(404, 'there is no capture of this name in --capture-folder')
        with opened:
            left = os.fstat(opened.fileno()).st_size
            response = web.StreamResponse(
                headers={
                    'Content-Type': 'application/octet-stream',
                    # a name of a capture has letters, digits and . _ - only
                    'Content-Disposition': f'attachment; filename="{name}"',
                    'Content-Length': str(left),
                }
            )
            await response.prepare(request)
            while left and (piece := await self._in_thread(opened.read, min(left, PIECE_BYTES))):
                left -= len(piece)
                await response.write(piece)
            return response

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)


def _argument(request: web.Request, name: str) -> str:
    """Return an argument of the query. Raises Refused."""
    value = request.query.get(name, '')
    if not value:
        raise Refused(400, f'the address needs ?{name}=...')
    return value


def _json(data: Json) -> web.Response:
    text = json.dumps(data, separators=(',', ':'), allow_nan=False)
    return web.Response(text=text, content_type='application/json')


def _sender(content: bytes, kind: str) -> Handler:
    async def send(_: web.Request) -> web.Response:
        return web.Response(body=content, headers={'Content-Type': kind})

    return send

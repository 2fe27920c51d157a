# SPDX-License-Identifier: Apache-2.0
"""The routes of the dashboard. The event loop's thread; what takes long runs in other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import json
import os
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from lerobot_serve.access.connections import Connections
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.dashboard.access import Refused
from lerobot_serve.tools.dashboard.document.fleet_document import Json, Turn
from lerobot_serve.tools.dashboard.evidence import Captures
from lerobot_serve.tools.dashboard.http.commands_route import CommandsRoute
from lerobot_serve.tools.dashboard.http.page_files import add_headers, guard, Page
from lerobot_serve.tools.dashboard.http.viewers import RobotStreams, Stream
from lerobot_serve.tools.dashboard.robot_messages import jpeg_of, LastRequests
from lerobot_serve.tools.dashboard.robot_window import Heard

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

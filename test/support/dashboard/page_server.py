# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the dashboard, as it is, with a scripted fleet in the place of ROS."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import math
import threading
import time
from typing import Any

import msgspec

from lerobot_serve.access.token_file import Tokens
from lerobot_serve.tools.dashboard.document.fleet_document import FleetDocument, without_nulls
from lerobot_serve.tools.dashboard.evidence import Captures
from lerobot_serve.tools.dashboard.http.application import Application, CommandsRoute, Sources
from lerobot_serve.tools.dashboard.http.guards import read_page
from lerobot_serve.tools.dashboard.http.server import HttpServer
from lerobot_serve.tools.dashboard.planned_commands import CommandRequest, Reply
from lerobot_serve.tools.dashboard.robot_messages import LastRequests
from support.dashboard.example_fleet import fleet, Row
from support.dashboard.example_robot import last_minute, request

TOKEN, BEAT_S, THREADS = 'a-token-of-kim-for-tests', 0.3, 4
POINTS, POINT_MS = 60, 30_000
# the last evidence, as the bars of the example have it
NOT_WORSE, WORSE = 0.42, 0.91
SITE = {
    'domain': 42,
    'host': 'gpu1',
    'version': '0.2.0',
    'started': '2026-01-01T00:00:00Z',
    'can_act': True,
    'why_not': '',
}


def now_ms() -> int:
    return int(time.monotonic() * 1000)


def wobble(share: float) -> float:
    """Return what makes a line look like evidence; 0 at both ends."""
    return 0.09 * share * (1 - share) * (1 + math.sin(23 * share))


class PageServer:
    """Serves the page and a document that the test changes. The thread of the test."""

    def __init__(
        self,
        sections: dict[str, dict[str, Row]] | None = None,
        port: int = 0,
        can_act: bool = True,
    ) -> None:
        self.commands: list[Row] = []
        self._shown: frozenset[str] = frozenset()
        # what a command would do; a test replaces it
        self.answer: Callable[[Row], tuple[int, Row]] = self._does
        self.text = 'change it'
        why_not = '' if can_act else 'acting is off: no TLS'
        self._document = FleetDocument(SITE | {'can_act': can_act, 'why_not': why_not}, now_ms())
        self._lock, self._stopping, self._is_quiet = threading.Lock(), threading.Event(), False
        for section, rows in (sections or fleet()).items():
            for key, row in rows.items():
                self._document.put(section, key, without_nulls(row))
        self._document.turn(now_ms())
        self._requests = LastRequests()
        self._requests.put(12, request())
        self._threads = ThreadPoolExecutor(THREADS, 'request')
        self._application = self._build_application()
        self._http = HttpServer(self._application, '127.0.0.1', port, on_failure=print)
        self._http.start()
        self.port = self._http.port
        self.url = f'http://127.0.0.1:{self.port}'
        self._thread = threading.Thread(target=self._beat, name='beat', daemon=True)
        self._thread.start()

    def put(self, section: str, key: str, row: Row) -> None:
        """Add or replace a row, and publish it."""
        with self._lock:
            self._document.put(section, key, without_nulls(row))
        self._publish()

    def change(self, section: str, key: str, **values: Any) -> None:
        """Change values of a row, and publish it."""
        with self._lock:
            row = {**(self._document.row(section, key) or {}), **values}
        self.put(section, key, row)

    def be_quiet(self, is_quiet: bool = True) -> None:
        """Publish nothing, not even that the stream lives."""
        self._is_quiet = is_quiet

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._http.close()
        self._threads.shutdown()

    def _build_application(self) -> Application:
        sources = Sources(
            evidence=self._evidence,
            requests=lambda _: self._requests,
            want_robots=self._show_robots,
            explain=self._explain,
            captures=Captures(None),
        )
        tokens = Tokens({'kim': TOKEN})
        route = CommandsRoute(tokens, self._run, self._threads, is_private=True)
        names = frozenset({'localhost'})
        document = self._document.newest
        return Application(read_page(), document, names, sources, route, self._threads)

    def _beat(self) -> None:
        while not self._stopping.wait(BEAT_S):
            self._publish()

    def _publish(self) -> None:
        with self._lock:
            if self._is_quiet:
                return
            if turn := self._document.turn(now_ms()):
                self._http.call(self._application.on_turn, turn)

    def _run(self, command: CommandRequest, name: str, _: str) -> Reply:
        """A thread of the pool."""
        given = msgspec.structs.asdict(command)
        self.commands.append(given)
        status, body = self.answer(given)
        return Reply(status, body | ({'by': f'{name} (dashboard)'} if body.get('done') else {}))

    def _does(self, command: Row) -> tuple[int, Row]:
        if command['confirm'] is None:
            return 200, {'done': False, 'effect': 'do', 'text': self.text, 'asks': True}
        if command['confirm'] != self.text:
            return 409, {'error': 'the state changed: read it again'}
        return 200, {
            'done': True,
            'text': self.text,
            'changes': ['rollout: running -> rolled back'],
        }

    def _evidence(self, router: str) -> Row | None:
        if router not in self._document.newest['routers']:
            return None
        shares = [step / (POINTS - 1) for step in range(POINTS)]
        return {
            't_ms': [now_ms() - (POINTS - step) * POINT_MS for step in range(POINTS)],
            'not_worse': [round(NOT_WORSE * each**1.3 + wobble(each), 3) for each in shares],
            'worse': [round(WORSE * each**1.8 + wobble(each), 3) for each in shares],
            'share_percent': [25] * POINTS,
            'promote_at': 1.3,
            'roll_back_at': 1.78,
        }

    def _explain(self, number: str) -> Row | None:
        captures = [{'name': 'capture_3.mcap', 'bytes': 1_822_331, 'url': 'javascript:alert(4)'}]
        text = 'cause: /v2/policy_server did not reply\nremedy: max_sessions 12'
        return {'id': number, 'explanation': text, 'captures': captures}

    def _show_robots(self, robots: frozenset[str]) -> None:
        new, self._shown = robots - self._shown, robots
        for robot in new:
            self._http.call(self._application.on_heard, robot, last_minute(now_ms()))

# SPDX-License-Identifier: Apache-2.0
"""A feed with its thread, a shadow and a replica as its clients see them, and robots that ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import threading

from msgspec.structs import replace

from lerobot_serve.contract.data_path.chunk import read_reply_summary
from lerobot_serve.contract.data_path.execution_report import ExecutedRun, ExecutionReport
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.shadow.comparator import ShadowComparator, ShadowComparison
from lerobot_serve.router.shadow.feed import ShadowFeed
from lerobot_serve.router.shadow.qualification import Qualification
from support.router.contexts import make_context
from support.router.dispatch_rig import answer_bytes, ask_of, request_bytes, ROWS, SECOND

LIVE, SHADOW = 'act@11', 'act@22'
ALL = RouterParameters(shadow_sample_percent=100.0, shadow_spread_percent=100.0)
LIMIT_S = 10.0


class FakeClient:
    """A server. `error` is what each call raises; `hangs` keeps a call until it is set."""

    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}
        self.opened: list[OpenSessionRequest] = []
        self.closed: list[OpenSessionRequest] = []
        self.sent: list[bytes] = []
        self.error: Exception | None = None
        self.hangs: threading.Event | None = None

    def open(self, ask: OpenSessionRequest, timeout_s: float) -> None:
        self.opened.append(ask)
        self._answer()
        self.sessions[ask.client_id] = ask.session_epoch

    def close(self, ask: OpenSessionRequest, timeout_s: float) -> None:
        self.closed.append(ask)
        self._answer()
        if self.sessions.get(ask.client_id) == ask.session_epoch:
            del self.sessions[ask.client_id]

    def send(self, raw: bytes) -> None:
        self.sent.append(raw)

    def _answer(self) -> None:
        if self.hangs:
            assert self.hangs.wait(LIMIT_S)
        if self.error:
            raise self.error

    @property
    def asked(self) -> list[tuple[str, int, int]]:
        """Return who asked, in which session, and which number."""
        starts = [read_envelope(raw) for raw in self.sent]
        return [(s.client_id, s.header.session_epoch, s.header.seq) for s in starts]


class FeedRig:
    """See the module; made by `feed_rig`. What a test calls is what the data path would."""

    def __init__(self, folder: Path, rules: RouterParameters) -> None:
        self.now_ns = 1000 * SECOND
        self.shadow, self.second_draws = FakeClient(), FakeClient()
        self.has_room = True
        self.published: list[tuple[ShadowComparison, tuple[str, ...]]] = []
        self.told: list[str] = []
        self.book = ShadowComparator(Qualification(warn=self.told.append))
        self.feed = ShadowFeed(
            self.book,
            self.shadow,
            lambda robot: self.second_draws if self.has_room else None,
            lambda found, names: self.published.append((found, names)),
            rules,
            make_context(self, self.told),
        )
        self.raised: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='shadow')

    def _run(self) -> None:
        try:
            self.feed.run(self._stop)
        except BaseException as error:
            self.raised.append(error)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self.feed.wake()
        if self._thread.ident:
            self._thread.join(LIMIT_S)
        assert not self.raised

    def settle(self) -> None:
        """Wait until all of it is done, with what is published because of it."""
        for _ in range(2):
            assert self.feed.finish(LIMIT_S), self.raised

    @staticmethod
    def robot(name: str = 'robot', epoch: int = 1, **ask: object) -> ClientSession:
        return ClientSession(
            replace(ask_of(name, epoch), **ask), {}, 0, episode_id='e-1', slot='a'
        )

    def request(
        self, robot: ClientSession, seq: int, executed: ExecutionReport | None = None
    ) -> bytes:
        """A robot has asked."""
        raw = request_bytes(robot.request.client_id, seq, 'e-1', epoch=robot.request.session_epoch)
        self.feed.on_requested(robot, raw, read_envelope(raw).header, executed)
        return raw

    def serve(self, robot: ClientSession, request: bytes, seed: int = 0) -> None:
        """A robot was answered."""
        raw = answer_bytes(request, policy=LIVE, seed=seed)
        flight = InFlightRequest(robot, read_envelope(request).header, 'e-1', request, self.now_ns)
        self.feed.on_replied(flight, '/a1', raw, read_reply_summary(raw))

    def rounds(self, robot: ClientSession, *seqs: int, shadow: bool = True, seed: int = 0) -> None:
        """Let a robot ask, be answered by both, and execute all of it."""
        executed = None
        for seq in seqs:
            request = self.request(robot, seq, executed)
            self.serve(robot, request, seed and seed + seq)
            if shadow:
                self.feed.on_shadow_chunk(answer_bytes(request, policy=SHADOW))
            run = ExecutedRun(seq, robot.request.session_epoch, 0, ROWS)
            executed = ExecutionReport(runs=(run,))
        self.settle()

    def drops(self) -> dict[str, int]:
        return self.feed.drops()


@contextmanager
def feed_rig(folder: Path, rules: RouterParameters = ALL) -> Iterator[FeedRig]:
    """Give a feed whose thread runs once it is started, and see to its end."""
    rig = FeedRig(folder, rules)
    try:
        yield rig
    finally:
        rig.end()

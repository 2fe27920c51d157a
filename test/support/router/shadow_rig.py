# SPDX-License-Identifier: Apache-2.0
"""A book of a shadow, and robots, policies and a shadow that a test plays."""

from __future__ import annotations

from math import nan
from pathlib import Path

import numpy as np

from lerobot_serve.cage import limits_encoding
from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.execution_report import ExecutedRun, ExecutionReport
from lerobot_serve.contract.data_path.header import Envelope, Header
from lerobot_serve.contract.records import Extension, OpenSessionRequest
from lerobot_serve.contract.schema import MsgType, Status
from lerobot_serve.router.shadow.comparator import ShadowComparator, ShadowComparison
from lerobot_serve.router.shadow.qualification import Qualification
from lerobot_serve.router.shadow.sample_joiner import RequestKey
from support.contract.session_request import session_request

MS = 1_000_000
S = 1000 * MS
FPS = 10.0
LIVE, SHADOW = 'act@11', 'act@22'
NAMES = ('pan.pos', 'tilt.pos')
LIMITS = tuple(ActionLimit(n, n, Motion.POSITION, -1.0, 1.0, 0.25) for n in NAMES)


def key(seq: int = 1, client_id: str = 'robot_1', session_epoch: int = 7) -> RequestKey:
    return RequestKey(client_id, session_epoch, seq)


def start(
    of: RequestKey, episode_id: str = 'e-1', msg_type: MsgType = MsgType.OBSERVATION
) -> Envelope:
    header = Header(of.seq, 0, of.session_epoch, 1, 1, int(msg_type))
    return Envelope(header, of.client_id, episode_id)


def table(rows: object) -> np.ndarray:
    """Return rows of actions, which may be numbers for one action."""
    made = np.array(rows, np.float32)
    return made if made.ndim == 2 else made.reshape(len(made), 1)


def chunk(
    of: RequestKey, rows: object, policy: str = LIVE, *, seed: int = 0, status: Status = Status.OK
) -> Chunk:
    header = start(of, msg_type=MsgType.CHUNK).header
    return Chunk(header, of.client_id, 'e-1', table(rows), policy=policy, seed=seed, status=status)


def run(of: RequestKey, first_row: int, rows: object, *, after_pause: bool = False) -> ExecutedRun:
    return ExecutedRun(of.seq, of.session_epoch, first_row, table(rows), after_pause)


def told(*runs: ExecutedRun, **counts: int) -> ExecutionReport:
    return ExecutionReport(**counts, runs=runs)


def ramp(begin: float, stride: float, rows: int, columns: int = 2) -> np.ndarray:
    """Return rows in which every action continues by `stride`."""
    line = begin + stride * np.arange(rows, dtype=np.float32)
    return np.repeat(line[:, None], columns, 1)


# stays within the limits
CALM = ramp(0.0, 0.1, 5)


def ask(
    *,
    client_id: str = 'robot_1',
    limits: bytes | None = b'',
    names: tuple[str, ...] = NAMES,
    fps: float = FPS,
) -> OpenSessionRequest:
    """Return what a robot asks; `limits` are those of LIMITS unless they are given."""
    data = limits_encoding.encode_limits(LIMITS, 1 / FPS) if limits == b'' else limits
    extensions = () if data is None else (Extension(limits_encoding.EXTENSION_KEY, data),)
    return session_request(client_id, 7, '/reply', names, fps=fps, extensions=extensions)


class World:
    """A book, what it has kept, and a clock that a test moves."""

    def __init__(self, folder: Path, *, limits: bool = True) -> None:
        self.kept, self.said = {}, []
        self.now_ns = 1000 * S
        self.book = self.open()
        self.book.on_session(ask(limits=b'' if limits else None))

    def open(self) -> ShadowComparator:
        return ShadowComparator(Qualification(self.kept, self.kept.__setitem__, self.said.append))

    @property
    def drops(self) -> dict[str, int]:
        return dict(self.book.drops)

    def request(self, of: RequestKey, episode_id: str = 'e-1') -> None:
        self.book.on_live_request(start(of, episode_id), self.now_ns)

    def live(self, of: RequestKey, rows: object, **fields: object) -> None:
        self.book.on_live_chunk(chunk(of, rows, **fields), self.now_ns)

    def shadow(self, of: RequestKey, rows: object, policy: str = SHADOW, **fields: object) -> None:
        self.book.on_shadow_chunk(chunk(of, rows, policy, **fields), self.now_ns)

    def second(self, of: RequestKey, rows: object, **fields: object) -> None:
        """Answer the second request, which went out under another name."""
        other = of._replace(client_id='router')
        self.book.on_second_draw(of, chunk(other, rows, **fields), self.now_ns)

    def executed(self, of: RequestKey, *runs: ExecutedRun, **counts: int) -> None:
        """Tell it with the request of this key."""
        self.book.on_executed(start(of), told(*runs, **counts))

    def poll(self, after_s: float = 0.0) -> list[ShadowComparison]:
        self.now_ns += int(after_s * S)
        return self.book.poll(self.now_ns)

    def sample(
        self,
        seq: int = 1,
        live: object = ((0, 0), (0, 0)),
        shadow: object = ((0, 0), (0, 0)),
        *,
        episode_id: str = 'e-1',
        seed: int = 0,
        second: object = None,
        latency_s: float = 0.0,
        commanded: object = None,
    ) -> list[ShadowComparison]:
        """Let a robot ask once, be answered and execute all of it; return what was compared."""
        of = key(seq)
        self.request(of, episode_id)
        self.live(of, live, seed=seed)
        self.now_ns += int(latency_s * S)
        self.shadow(of, shadow)
        if second is not None:
            self.second(of, second, seed=seed + 1)
        rows = live if commanded is None else commanded
        self.executed(key(seq + 1), run(of, 0, rows))
        # one row of the next chunk shows that this one is over
        self.executed(key(seq + 2), run(key(seq + 1), 0, rows[-1:]))
        return self.poll()


def learn(
    known: Qualification,
    at_s: float = 0.0,
    episode_id: str = 'e-1',
    policy: str = SHADOW,
    **more: object,
) -> None:
    sample = {'divergence': 1.0, 'in_spreads': nan, 'trips': False, 'latency_ms': 20.0, **more}
    known.add(policy, episode_id, int(at_s * S), **sample)

# SPDX-License-Identifier: Apache-2.0
"""The servers of a hunted edge: well, slow, lossy, hostile or away, as the driver wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from msgspec.structs import replace
import numpy as np

from benchmarks.hunting.edge_invariants import ChunkRow, EdgeInvariants, MARK
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.records import CameraSpec, OpenSessionResponse
from lerobot_serve.contract.schema import Flag, Refusal, Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.inputs.latest import HistoryStep
from lerobot_serve.edge.session.transport.fake_transport import agreed

HEALTHY, SLOW, SILENT, LOSSY, HOSTILE, FAILING, ABSENT, REFUSING, INCOMPATIBLE = BEHAVIORS = (
    'well',
    'slow',
    'silent',
    'lossy',
    'hostile',
    'failing',
    'away',
    'refusing',
    'misfit',
)
MS = 1_000_000
UNREACHABLE_NS = 300 * MS
CHUNK_ROWS = 12
# how far a policy goes in one step, where the limits would allow about as much
WANTED_STEP = 0.15


@dataclass(slots=True)
class EdgeModelServer:
    """One server: how it is, and which policy it has."""

    name: str
    mood: str = HEALTHY
    policy: str = 'reach@1'

    @property
    def is_alive(self) -> bool:
        return self.mood not in (ABSENT, SILENT)


class EdgeModelServers:
    """
    The transport and the observations of a requester, whose thread calls the methods.

    deliver  puts bytes into the future: after so long, to the edge
    sleep    lets time pass for a call that blocks
    later    has something done after so long
    """

    def __init__(
        self,
        names: tuple[str, ...],
        checker: EdgeInvariants,
        random: Random,
        *,
        clock: Callable[[], int],
        deliver: Callable[[int, bytes], None],
        sleep: Callable[[int], None],
        later: Callable[[int, Callable[[], None]], None],
        captured_ns: Callable[[], int],
    ) -> None:
        self.all = {name: EdgeModelServer(name) for name in names}
        self._checker, self._random, self._clock = checker, random, clock
        self._deliver, self._sleep, self._captured_ns = deliver, sleep, captured_ns
        self._later = later
        self._marks = count(1)
        self._present = self.all[names[0]]
        self._earlier: list[tuple[Chunk, bytes]] = []

    # as edge.session.transport has it

    def is_available(self, server: str) -> bool:
        return self.all[server].mood != ABSENT

    def open_session(self, server: str, epoch: int) -> OpenSessionResponse:
        self._present = self.all[server]
        mood = self._present.mood
        if mood in (ABSENT, SILENT):
            self._sleep(UNREACHABLE_NS)
            raise ServerUnreachable('it does not answer')
        if mood in (REFUSING, INCOMPATIBLE):
            code = Refusal.CAPACITY if mood == REFUSING else Refusal.ACTION_NAMES
            raise SessionRefused(code, 'hunted')
        return agreed(chunk_size=CHUNK_ROWS, supports_rtc=True)

    def probe(self, on_reply: Callable[[], None]) -> None:
        if self._present.is_alive:
            self._later(self._random.choice((5, 40)) * MS, on_reply)

    def close_session(self) -> None:
        pass

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        pass

    def begin_session(self, cameras: tuple[CameraSpec, ...]) -> None:
        pass

    def read(self, steps: tuple[HistoryStep, ...]) -> tuple[np.ndarray, tuple[Image, ...]]:
        rows = [next(iter(step.snapshot.values.values())) for step in steps]
        return np.stack(rows).astype(np.float32), ()

    def send(self, raw: bytes) -> None:
        request = wire_observation.decode(raw)
        header, prefix = request.header, request.prefix_robot
        key = header.session_epoch, header.episode, header.seq
        marks = [float(row[MARK]) for row in prefix]
        self._checker.asked(key, self._clock(), self._captured_ns(), marks, request.prefix_policy)
        self._answer(request, key)

    # answers

    def _answer(self, request: Observation, key: tuple[int, int, int]) -> None:
        server, random = self._present, self._random
        mood = server.mood
        if mood in (SILENT, ABSENT) or (mood == LOSSY and random.random() < 0.4):
            return
        chunk = self._chunk(request, key, server)
        if mood == FAILING:
            status = random.choice([s for s in Status if s != Status.OK])
            chunk = replace(chunk, robot=chunk.robot[:0], status=status)
        delay_ns = random.choice((5, 20, 60, 150)) * MS
        if mood == SLOW:
            delay_ns = random.choice((200, 450, 700, 1500)) * MS
        raw = self._encoded(chunk)
        if mood == HOSTILE:
            raw = self._twisted(chunk, raw)
        self._deliver(delay_ns, raw)
        if mood in (LOSSY, HOSTILE) and random.random() < 0.3:
            # once more, at another time
            self._deliver(random.choice((1, 30, 400)) * MS, raw)
        self._earlier = [*self._earlier[-7:], (chunk, raw)]

    def _chunk(
        self, request: Observation, key: tuple[int, int, int], server: EdgeModelServer
    ) -> Chunk:
        at = np.array(request.state[-1], np.float64)
        way = np.array([self._random.uniform(-1, 1) for _ in at])
        steps = np.arange(1, CHUNK_ROWS + 1)[:, None]
        rows = (at + WANTED_STEP * way * steps).astype(np.float32)
        for row in rows:
            mark = next(self._marks)
            row[MARK] = mark
            self._checker.made(mark, ChunkRow(key, server.policy, tuple(map(float, row))))
        return Chunk(
            request.header.for_reply(Flag.NONE),
            request.client_id,
            request.episode_id,
            robot=rows,
            model=rows.copy(),
            policy=server.policy,
        )

    def _twisted(self, chunk: Chunk, raw: bytes) -> bytes:
        """Return an answer as an enemy, a bug or another version might send it."""
        random, rows, header = self._random, chunk.robot.copy(), chunk.header
        where = random.randrange(len(rows)), random.randrange(rows.shape[1] - 1)
        twist = random.randrange(12)
        if twist <= 2:
            rows[where] = (np.nan, np.inf, 1e30)[twist]
            return self._encoded(replace(chunk, robot=rows), raw[: len(raw) // 2])
        changed = {
            3: {'robot': rows[:, :-1], 'model': rows[:, :-1]},
            4: {'robot': rows[:0], 'model': rows[:0]},
            5: {'client_id': 'another'},
            6: {'header': replace(header, seq=header.seq + random.choice((-1, 1)))},
            7: {'header': replace(header, session_epoch=(header.session_epoch + 1) % 2**32)},
            8: {'header': replace(header, episode=header.episode + 1)},
            9: {'model': rows[:-1]},
        }.get(twist)
        if changed:
            if forged := changed.get('header'):
                self._note_forged(chunk, forged)
            return self._encoded(replace(chunk, **changed), raw)
        if twist == 10 and self._earlier:
            return random.choice(self._earlier)[1]
        return raw[: random.randrange(len(raw))]

    def _note_forged(self, chunk: Chunk, forged: Header) -> None:
        """
        Count rows as the reply to the request that a forged header names: where that is the one in
        flight by the time of a late or repeated delivery, no edge can know better.
        """
        key = forged.session_epoch, forged.episode, forged.seq
        for row in chunk.robot:
            made = ChunkRow(key, chunk.policy, tuple(map(float, row)))
            self._checker.made(round(float(row[MARK])), made)

    def _encoded(self, chunk: Chunk, otherwise: bytes = b'') -> bytes:
        try:
            return wire_chunk.encode(chunk)
        except Unencodable:
            return otherwise

# SPDX-License-Identifier: Apache-2.0
"""The policy servers of a hunted router, and its clients of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

from msgspec.structs import replace
import numpy as np

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.records import GetStatusResponse, OpenSessionRequest, ServerStatus
from lerobot_serve.contract.schema import Flag, Refusal, StateClass, Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused

HEALTHY, SLOW, HALTED, ABSENT, FAILING, NAN, FORGETFUL, FOREIGN, FULL, TWICE = BEHAVIORS = (
    'well',
    'slow',
    'halted',
    'gone',
    'failing',
    'nan',
    'forgetful',
    'foreign',
    'full',
    'twice',
)
STATUSES = {
    FAILING: Status.POLICY_ERROR,
    NAN: Status.NOT_FINITE,
    FORGETFUL: Status.NO_SESSION,
}
MS = 1_000_000
ROWS = np.zeros((2, 2), np.float32)
NAMES = 'x', 'y'


@dataclass(slots=True)
class RouterModelServer:
    """
    A policy server: its slot, how it is, which policy it has, whether that has replaced another
    one under open sessions, and the policy that each client has heard of.
    """

    name: str
    slot: str
    policy: str
    mood: str = HEALTHY
    has_swapped: bool = False
    known: dict[str, str] = field(default_factory=dict)

    def load(self, policy: str) -> None:
        """Serve another policy; the sessions end."""
        self.policy, self.has_swapped = policy, False
        self.known.clear()

    def swap(self, policy: str) -> None:
        """Serve another policy; the sessions stay."""
        self.has_swapped |= policy != self.policy
        self.policy = policy

    @property
    def is_there(self) -> bool:
        return self.mood != ABSENT

    @property
    def tells(self) -> bool:
        """Whether its status comes."""
        return self.mood not in (ABSENT, HALTED)

    @property
    def seen(self) -> ServerStatus:
        swap = ServerStatus.Swap
        return ServerStatus(
            policy=self.policy,
            slot=self.slot,
            state=ServerStatus.State.ACTIVE,
            state_class=StateClass.CHUNK_STATELESS,
            warmed_up=True,
            max_sessions=8,
            swap=swap.DONE if self.has_swapped else swap.NONE,
        )

    def answers(self, raw: bytes, random: Random) -> list[tuple[int, bytes]]:
        """Return what it answers, and after how long."""
        if self.mood in (ABSENT, HALTED):
            return []
        delay_ns = random.choice((5, 20, 60)) * MS
        if self.mood == SLOW:
            delay_ns = random.choice((300, 900, 1500, 4000)) * MS
        policy = 'foreign@9' if self.mood == FOREIGN else self.policy
        status = STATUSES.get(self.mood, Status.OK)
        header, client_id, episode_id = read_envelope(raw)
        rows = {'robot': ROWS, 'model': ROWS} if status == Status.OK else {}
        flags = Flag.NONE
        if status == Status.OK and self.mood != FOREIGN:
            is_other = self.known.get(client_id, policy) != policy
            flags = Flag.POLICY_CHANGED if is_other else Flag.NONE
            self.known[client_id] = policy
        answer = wire_chunk.encode(
            Chunk(
                header.for_reply(flags),
                client_id,
                episode_id,
                status=status,
                policy=policy,
                slot=self.slot,
                **rows,
            )
        )
        again = [(delay_ns + 40 * MS, answer)] if self.mood == TWICE else []
        return [(delay_ns, answer), *again]


class RouterModelClient:
    """As router.opening has it."""

    def __init__(self, server: RouterModelServer) -> None:
        self._server = server

    def _call(self) -> None:
        if self._server.mood in (ABSENT, HALTED):
            raise ServerUnreachable(f'{self._server.name} does not answer')

    def open(self, ask: OpenSessionRequest, timeout_s: float) -> SimpleNamespace:
        self._call()
        if self._server.mood == FULL:
            raise SessionRefused(Refusal.CAPACITY, 'hunted')
        self._server.known[ask.client_id] = self._server.policy
        return SimpleNamespace(server=self._server.name, policy=self._server.policy)

    def close(self, ask: OpenSessionRequest, timeout_s: float) -> None:
        self._call()

    def reset(self, request: object, timeout_s: float) -> SimpleNamespace:
        self._call()
        return SimpleNamespace(acknowledged=True, text='')

    def status(self, timeout_s: float) -> GetStatusResponse:
        self._call()
        return GetStatusResponse(
            state_names=NAMES,
            action_names=NAMES,
            observation_steps=1,
            observation_stride_steps=1,
        )

    def session_request_for(self, ask: OpenSessionRequest) -> OpenSessionRequest:
        return replace(ask, reply_topic=f'/router/replies{self._server.name}')

    def wait_until_matched(self, timeout_s: float) -> bool:
        return True

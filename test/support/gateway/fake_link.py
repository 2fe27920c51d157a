# SPDX-License-Identifier: Apache-2.0
"""A link to a router that is a few lines of the test: it answers, refuses, goes and comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs
import numpy as np

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import (
    CameraSpec,
    GetStatusResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
    ServerStatus,
)
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.gateway.router.upstream import RouterUpstream
from lerobot_serve.links.link import Presence
from support.replacing import replace

NAMES = ('a.pos', 'b.pos')
CAMERA = CameraSpec('observation.images.front', 24, 32)
FINGERPRINT = 'one@11|two@22'


def policy_reply(**changes: Any) -> OpenSessionResponse:
    """Return the response of OpenSession, from which that of GetStatus is made."""
    reply = OpenSessionResponse(
        schema_version=1,
        policy=FINGERPRINT,
        policy_type='fake',
        state_names=NAMES,
        action_names=NAMES,
        cameras=(CAMERA,),
        chunk_size=3,
        trained_fps=10.0,
        observation_steps=1,
    )
    return structs.replace(reply, **changes)


@dataclass
class FakeLink:
    """A ServerClient; its methods run in the event loop and in threads of the pool."""

    server: str = '/policy_router'
    reply: OpenSessionResponse = field(default_factory=policy_reply)
    status_text: str = ''
    is_away: bool = False
    refusal: Exception | None = None
    # what a request is answered with; None: nothing
    answer: Callable[[Observation], Chunk | None] = lambda request: ok(request)
    opened: list[OpenSessionRequest] = field(default_factory=list)
    closed: list[OpenSessionRequest] = field(default_factory=list)
    announced: list[tuple[str, int, int, str]] = field(default_factory=list)
    requests: list[Observation] = field(default_factory=list)
    upstream: RouterUpstream | None = None

    def reply_topic(self, session_epoch: int) -> str:
        return f'/gateway/replies/{session_epoch}'

    def send(self, raw: Outgoing) -> None:
        request = wire_observation.decode(bytes(raw))
        self.requests.append(request)
        chunk = self.answer(request)
        if chunk is not None:
            self.deliver(chunk)

    def deliver(self, chunk: Chunk) -> None:
        assert self.upstream
        self.upstream.deposit_chunk(wire_chunk.encode(chunk))

    def announce(self, request: ResetEpisodeRequest, _: Any) -> None:
        self.announced.append(structs.astuple(request))

    def status(self, timeout_s: float) -> GetStatusResponse:
        self._check()
        known = structs.asdict(self.reply)
        status = ServerStatus(
            policy=self.reply.policy, policy_type=self.reply.policy_type, text=self.status_text
        )
        shared = known.keys() & set(GetStatusResponse.__struct_fields__)
        return GetStatusResponse(status=status, **{name: known[name] for name in shared})

    def open(self, session_request: OpenSessionRequest, timeout_s: float) -> OpenSessionResponse:
        self._check()
        if self.refusal:
            raise self.refusal
        self.opened.append(session_request)
        return self.reply

    def wait_until_matched(self, timeout_s: float) -> bool:
        return True

    def close(self, session_request: OpenSessionRequest, timeout_s: float) -> None:
        self._check()
        self.closed.append(session_request)

    def _check(self) -> None:
        if self.is_away:
            raise ServerUnreachable(f'{self.server} is away')

    def go_away(self, presence: Presence = Presence.GONE) -> None:
        self.is_away = True
        assert self.upstream
        self.upstream.deposit_presence(presence)

    def come_back(self) -> None:
        self.is_away = False
        assert self.upstream
        self.upstream.deposit_presence(Presence.THERE)


def ok(request: Observation, **changes: Any) -> Chunk:
    """Return the reply to a request: its state, three times."""
    chunk = Chunk(
        request.header.for_reply(0),
        request.client_id,
        request.episode_id,
        robot=np.tile(request.state[-1], (3, 1)),
        model=np.tile(request.state[-1], (3, 1)),
        policy='two@22',
        slot='b',
        inference_ms=4.0,
        queue_wait_ms=1.0,
    )
    return replace(chunk, **changes)


def failed(request: Observation, status: Status, text: str = '') -> Chunk:
    empty = np.zeros((0, 0), np.float32)
    return ok(request, robot=empty, model=empty, status=status, status_text=text)

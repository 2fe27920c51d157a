# SPDX-License-Identifier: Apache-2.0
"""A policy and the robots it serves, without ROS; for the tests of serving and its reports."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.server.core import NO_OBSERVER, ServerCore
from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from support.replacing import replace
from support.server.session_rig import RULES
from support.server.worker_rig import ASK as BARE_ASK
from support.server.worker_rig import bench, FRONT, HEADER, OBSERVATION

FIXED = replace(RULES, max_sessions=100)
MEASURED = replace(FIXED, admission='auto')
ASK = structs.replace(BARE_ASK, cameras=(CameraSpec(FRONT, 8, 16),))


def ask(number: int = 1, **changes: object) -> OpenSessionRequest:
    own = {'client_id': f'robot_{number}', 'reply_topic': f'/robot_{number}/action_chunk'}
    return structs.replace(ASK, **(own | changes))


def request(number: int = 1, *, left_s: float = 0.0, **header: object) -> bytes:
    """Return what a robot asks that has so much left to play."""
    observation = replace(
        OBSERVATION,
        client_id=f'robot_{number}',
        header=replace(HEADER, **header),
        queue_remaining_s=left_s,
    )
    return wire_observation.encode(observation)


class Rig:
    """Serving around a fake policy; `rig.step` is one turn of the inference thread."""

    def __init__(
        self,
        predict=None,
        rules: ServerParameters = FIXED,
        *,
        begun: bool = True,
        observer: Callable[[ServerStatistics], RequestObserver] = lambda _: NO_OBSERVER,
        **changes: object,
    ) -> None:
        made = bench(predict, **changes)
        self.policy, self.statistics, self.worker = made.policy, made.statistics, made.worker
        self.request_queue = RequestQueue()
        self.observer = observer(self.statistics)
        self.no_session_replies: list[Chunk] = []
        self.core = ServerCore(
            self.worker,
            self.request_queue,
            self.statistics,
            rules,
            self.observer,
            self.no_session_replies.append,
        )
        if begun:
            self.core.accept_requests()

    @property
    def drops(self) -> dict[str, int]:
        return self.statistics.drop_counts()

    @property
    def resets(self) -> list[str]:
        """Return what the policy was told to forget, in order."""
        return [call for call in self.policy.calls if isinstance(call, str)]

    def open(self, number: int = 1, now_ns: int = 0, **changes: object):
        session, _ = self.core.open(ask(number, **changes), now_ns)
        return session

    def step(self) -> list[Chunk]:
        """Run the jobs and answer what waits, as the inference thread would."""
        chunks = []
        for queued, chunk in self.core.worker.process(self.request_queue.take_batch()):
            chunks.append(chunk)
            self.tell(queued, chunk)
            if queued.on_reply:
                queued.on_reply(chunk)
        return chunks

    def tell(self, queued: QueuedRequest, chunk: Chunk) -> None:
        """Tell of an answer, as the node does once it is sent."""
        self.observer.on_reply(queued, chunk, wire_chunk.encode(chunk))

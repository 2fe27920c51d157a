# SPDX-License-Identifier: Apache-2.0
"""Policy servers without ROS whose traces keep all, as a replay needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Codec
from lerobot_serve.parameters import build_parameters
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.observability.trace_recorder import make_trace_recorder
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.trace.format.records import fields_of
from support.replacing import replace
from support.server.worker_rig import JPEG, RAW
from support.tools.replay_rig import request, SHAPE
from support.tools.trace_rig import header, Trace

WITH_CAMERA = 'joints=3,chunk=5,cameras=front:8x16,fps=30'
FULL = {'trace_images': 'full', 'trace_instructions': 'full'}


class TracedServer:
    """Answers one request after the other; `pairs` are the bytes that came and went."""

    def __init__(
        self, folder: Path, kind: str = 'null', path: str = SHAPE, **parameters: object
    ) -> None:
        given = {'policy_kind': kind, 'policy_path': path, 'max_sessions': 100} | FULL
        built = build_parameters(
            ServerParameters, given | {'trace_folder': str(folder)} | parameters
        )
        self.now_ns = 0
        self.pairs: list[tuple[bytes, bytes]] = []
        self.statistics, self.request_queue = ServerStatistics(), RequestQueue()
        self.recorder = make_trace_recorder(
            built,
            '/policy_server',
            self.statistics,
            clock=self._clock,
            log_warning=pytest.fail,
        )
        self.observer = RequestObserver(self.recorder)
        self.worker = policy_loading.load_worker(built, '', self.statistics)
        self.core = ServerCore(
            self.worker, self.request_queue, self.statistics, built, self.observer
        )
        self.core.accept_requests()

    def _clock(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def open(self, raw: bytes, **more: object) -> None:
        """Open the session of a request, unless it is."""
        start, served = read_envelope(raw), self.worker.description
        ask = OpenSessionRequest(
            schema_version=SCHEMA_VERSION,
            client_id=start.client_id,
            instance=0,
            session_epoch=start.header.session_epoch,
            reply_topic='/test/replies/rig',
            state_names=served.state_names,
            action_names=served.action_names,
            cameras=tuple(CameraSpec(c.name, channels=c.channels) for c in served.cameras),
            fps=30.0,
            codec=Codec.JPEG,
            **more,
        )
        if not self.core.sessions.find(start.client_id, start.header.session_epoch):
            self.core.open(ask, 0)

    def ask(self, requests: Iterable[bytes], **more: object) -> None:
        """Answer each in its session."""
        for raw in requests:
            self.open(raw, **more)
            self.core.enqueue(raw, 0)
            self.answer()

    def ask_one(self, key: str, raw: bytes, use: Callable[[Chunk], None]) -> None:
        """Answer one without a session."""
        self.core.enqueue_one_shot(key, raw, 0, use)
        self.answer()

    def answer(self, status: str = '') -> None:
        for queued, chunk in self.worker.process(self.request_queue.take_batch()):
            raw = wire_chunk.encode(chunk)
            self.pairs.append((queued.raw, raw))
            self.observer.on_reply(queued, chunk, raw, status)

    def end(self) -> Path:
        """Return the trace, which is whole now."""
        self.recorder.writer.close()
        self.worker.close()
        return self.recorder.writer.path


def traced(
    folder: Path, requests: Iterable[bytes], kind: str = 'null', path: str = SHAPE, **more: object
) -> tuple[Path, list[tuple[bytes, bytes]]]:
    """Return the last part of the trace of a server that answered these, and all it was asked."""
    server = TracedServer(folder, kind, path, **more)
    server.ask(requests)
    return server.end(), server.pairs


def edge_trace(folder: Path, role: str = 'edge') -> Path:
    """Return the trace of a node that is not a policy server."""
    trace = Trace(folder, role)
    trace.writer._header = fields_of(header(role=role))
    trace.note('dead')
    trace.writer.close()
    return trace.writer.path


def with_images(seq: int) -> bytes:
    """Return a request with a picture of each codec; more than the policy asked for."""
    raw = request(seq)
    pictures = (replace(RAW, name='observation.images.front'), replace(JPEG, name='other'))
    return wire_observation.encode(replace(wire_observation.decode(raw), images=pictures))


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)

# SPDX-License-Identifier: Apache-2.0
"""
The remote loop: the edge's pipeline and queue, the bytes of the wire, a policy as it is served.

Between them is what the topics carry, encoded and decoded; time is the script's. Main thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import Codec
from lerobot_serve.edge.action_queue import ActionQueue, DELAY_RULES
from lerobot_serve.edge.inputs.latest import HistoryStep, LatestInputs, ObservationHistory
from lerobot_serve.edge.latency import LatencyTracker
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.chunk_merging import ChunkMerger
from lerobot_serve.edge.session.pipeline import (
    EpisodeRequest,
    RequestPipeline,
    SessionStatus,
)
from lerobot_serve.edge.session.request import OK, RequestParts, RobotSession
from lerobot_serve.edge.session.transport.fake_transport import agreed
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from support.contract.session_request import session_request
from support.rtc_parity.scene import (
    CAMERA,
    CHUNK_ROWS,
    FPS,
    HEIGHT,
    JOINTS,
    ROBOT_TYPE,
    ScriptedObservation,
    TASK,
    WIDTH,
)
from support.rtc_parity.script import STEP_S

SERVER, CLIENT = '/policy_server', 'robot'
INPUT = 'robot'
LONG_S = 1e6


class Wire:
    """Transport and observations of the pipeline: what it sends is kept."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def begin_session(self, cameras: tuple[CameraSpec, ...]) -> None:
        pass

    def read(self, steps: tuple[HistoryStep, ...]) -> tuple[np.ndarray, tuple[Image, ...]]:
        """Return what the robot sees, as it was deposited."""
        seen: list[ScriptedObservation] = [step.snapshot.values[INPUT] for step in steps]
        frames = tuple(image_codec.encode(CAMERA, each.frame, Codec.RAW) for each in seen)
        return np.stack([each.state for each in seen]), frames

    def send(self, raw: bytes) -> None:
        self.sent.append(raw)


class RemoteLoop:
    """One policy, one robot after the other."""

    def __init__(self, folder: Path) -> None:
        parameters = ServerParameters(
            policy_kind='lerobot',
            policy_path=str(folder),
            cpu_threads=1,
            memory_margin_mb=0,
            state_names=JOINTS,
            action_names=JOINTS,
            trained_fps=FPS,
            warmup_inferences=1,
        )
        self._request_queue, statistics = RequestQueue(), ServerStatistics()
        self._worker = policy_loading.load_worker(parameters, '', statistics)
        self.core = ServerCore(self._worker, self._request_queue, statistics, parameters)
        self.core.accept_requests()
        self._now_ns = 0

    def begin(self, horizon: int, rule: str, number: int) -> None:
        """A robot opens a session, whose `number` its requests and their seeds carry."""
        self._open(horizon, number)
        self._wire, self._inputs = Wire(), LatestInputs({INPUT: int(LONG_S * 1e9)})
        self._queue = ActionQueue(DELAY_RULES[rule])
        # as LeRobot's tracker counts: every answer, for ever
        latency = LatencyTracker(window_s=LONG_S, warm_up=0)
        session = RobotSession(CLIENT, number - 1)
        self._pipeline = RequestPipeline(
            self._wire,
            session,
            RequestParts(ObservationHistory(self._inputs), self._wire, ExecutionReport),
            ChunkMerger(self._queue, len(JOINTS), step_s=STEP_S, latency=latency),
            status=SessionStatus(),
            clock=lambda: self._now_ns,
            listener=EdgeListener(),
        )
        served = self.core.description
        agreement = agreed(chunk_size=served.chunk_size, supports_rtc=served.supports_rtc)
        self._pipeline.begin_session(SERVER, session.begin_request(), agreement)
        self._pipeline.set_episode(EpisodeRequest(TASK))
        self._settings = EdgeParameters(
            request_threshold_s=LONG_S,
            request_timeout_s=LONG_S,
            rtc=True,
            execution_horizon=horizon,
        )

    def _open(self, horizon: int, number: int) -> None:
        ask = session_request(
            CLIENT,
            number,
            f'/{CLIENT}/action_chunk',
            JOINTS,
            cameras=(CameraSpec(CAMERA, HEIGHT, WIDTH),),
            fps=FPS,
            robot_type=ROBOT_TYPE,
            task=TASK,
            wants_rtc=True,
            rtc_execution_horizon=horizon,
            codec=Codec.RAW,
        )
        # numbers of scripts may fall, as epochs of one process do not
        if old := self.core.sessions.current(CLIENT):
            self.core.sessions.close(CLIENT, old.request.session_epoch)
            self.core.end_sessions([old], 'another script')
        self.core.open(ask, self._now_ns)

    def play(self) -> bytes | None:
        """Return the next row, None when nothing is left."""
        planned = self._queue.take()
        return None if planned is None else planned.action.tobytes()

    def ask(self, seen: ScriptedObservation) -> bytes:
        """Return the request as it goes over the wire."""
        self._now_ns += 1_000_000_000
        self._inputs.deposit(INPUT, seen, self._now_ns)
        if not self._pipeline.send_request(self._settings):
            raise RuntimeError(self._pipeline.status.waiting_for)
        return self._wire.sent.pop()

    def answer(self, raw: bytes, latency_s: float) -> tuple[int, float]:
        """
        Let the server answer, and merge what arrives after `latency_s`. Return the seed, and the
        latency as this robot's clock shows it.
        """
        refused = self.core.enqueue(raw, self._now_ns)
        if refused:
            raise RuntimeError(refused[1].status_text)
        ((_, chunk),) = self._worker.process(self._request_queue.take_batch())
        latency_ns = round(latency_s * 1e9)
        self._now_ns += latency_ns
        end = self._pipeline.on_reply(wire_chunk.encode(chunk), self._now_ns, self._settings)
        if end is None or end.status != OK:
            raise RuntimeError(f'{end}: {chunk.status_text}')
        return chunk.seed, latency_ns / 1e9

    def left(self) -> tuple[bytes, bytes]:
        """Return what is left to play in both units."""
        left = self._queue.leftover(CHUNK_ROWS)
        return left.model.tobytes(), left.robot.tobytes()

    def close(self) -> None:
        self._worker.close()

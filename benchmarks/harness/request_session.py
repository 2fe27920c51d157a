# SPDX-License-Identifier: Apache-2.0
"""One request over the real data path, with the time of each part. Main thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import secrets
import subprocess
import time

import numpy as np

from benchmarks.harness.client import open_when_ready, PolicyClient, ZenohPolicyClient
from benchmarks.peers.peer_process import JOINT_NAMES, JOINTS
from lerobot_serve.contract.cdr import Parts
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.image_codec import ImageCodecPool
from lerobot_serve.contract.image_size import downscale
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Codec, Flag, MsgType, Status
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.errors import UserError

CLIENT_ID = 'bench'
FPS, JPEG_QUALITY, IMAGE_THREADS = 30.0, 90, 2
STATE = np.zeros((1, JOINTS), np.float32)


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The parts of one round trip [ms]; `total` runs from the frames to the decoded chunk."""

    total: float
    image_encode: float
    message_build: float
    server_queue_wait: float
    server_processing: float
    server_inference: float
    hand_over: float
    chunk_decode: float

    @property
    def network(self) -> float:
        """All that is neither the image encoder nor a duration that the server reports."""
        server = self.server_queue_wait + self.server_processing + self.server_inference
        return self.total - self.image_encode - server


class RequestSession:
    """
    A session with a policy server or router, and the frames that are sent over and over.
    `episode_id` may be set between two trips.
    """

    def __init__(
        self,
        client: PolicyClient | ZenohPolicyClient,
        frames: dict[str, np.ndarray],
        codec: Codec,
        client_id: str = CLIENT_ID,
        *,
        quality: int = JPEG_QUALITY,
        fitted: Sequence[int] = (0, 0),
    ) -> None:
        """`fitted` is the height and width that pictures are sent in, 0 to leave them."""
        self._client, self._frames, self._codec = client, frames, codec
        self._quality, self._fitted = quality, tuple(fitted)
        self._pool = ImageCodecPool(IMAGE_THREADS)
        self._seq = 0
        self._ask = client.session_request_for(session_request('', frames, codec, client_id))
        self.episode_id = 'bench-1'
        self.request_bytes = self.reply_bytes = 0

    def open(self, server: subprocess.Popen | None = None) -> None:
        """Open the session once the server is ready. Raises UserError and Refused."""
        open_when_ready(
            self._client.sessions, self._ask, lambda: server is None or server.poll() is None
        )

    def close(self) -> None:
        """End the session; also when the server has gone."""
        self._pool.close()
        try:
            self._client.sessions.close(self._ask, 5.0)
        except ServerUnreachable as error:
            print(f'the session could not be closed: {error}')

    def trip(self) -> RoundTrip | None:
        """Ask once; None when no usable answer came in time. Raises UserError for a refusal."""
        begin_ns = time.perf_counter_ns()
        images = self._encoded()
        encoded_ns = time.perf_counter_ns()
        raw = self._build(images)
        built_ns = time.perf_counter_ns()
        self._client.sessions.send(raw)
        arrived = self._client.chunks.take()
        taken_ns = time.perf_counter_ns()
        if arrived is None:
            return None
        chunk = wire_chunk.decode(arrived.raw)
        end_ns = time.perf_counter_ns()
        if chunk.status != Status.OK:
            raise UserError(f'the server answered: {chunk.status_text}')
        if chunk.header.seq != self._seq:
            return None
        self.request_bytes, self.reply_bytes = len(raw), len(arrived.raw)
        return self._parts(
            chunk, begin_ns, encoded_ns, built_ns, arrived.arrived_ns, taken_ns, end_ns
        )

    def _encoded(self) -> tuple[Image, ...]:
        fitted = {name: downscale(frame, *self._fitted) for name, frame in self._frames.items()}
        return self._pool.encode_all(fitted, self._codec, self._quality)

    def _build(self, images: tuple[Image, ...]) -> Parts:
        self._seq += 1
        header = Header(
            self._seq,
            time.monotonic_ns(),
            self._ask.session_epoch,
            0,
            self._ask.schema_version,
            MsgType.OBSERVATION,
            Flag.NONE,
        )
        return wire_observation.encode_parts(
            Observation(header, self._ask.client_id, self.episode_id, STATE, images)
        )

    @staticmethod
    def _parts(chunk: Chunk, begin: int, encoded: int, built: int, *rest: int) -> RoundTrip:
        arrived, taken, end = rest
        return RoundTrip(
            total=(end - begin) / 1e6,
            image_encode=(encoded - begin) / 1e6,
            message_build=(built - encoded) / 1e6,
            server_queue_wait=chunk.queue_wait_ms,
            server_processing=chunk.processing_ms,
            server_inference=chunk.inference_ms,
            hand_over=(taken - arrived) / 1e6,
            chunk_decode=(end - taken) / 1e6,
        )


def session_request(
    reply_topic: str,
    frames: dict[str, np.ndarray],
    codec: Codec,
    client_id: str = CLIENT_ID,
) -> OpenSessionRequest:
    """Return what a null policy with these cameras accepts."""
    cameras = tuple(CameraSpec(name, *frame.shape) for name, frame in frames.items())
    return OpenSessionRequest(
        schema_version=SCHEMA_VERSION,
        client_id=client_id,
        instance=secrets.randbits(63),
        session_epoch=secrets.randbits(32),
        reply_topic=reply_topic,
        state_names=JOINT_NAMES,
        action_names=JOINT_NAMES,
        cameras=cameras,
        fps=FPS,
        codec=codec,
    )

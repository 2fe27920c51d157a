# SPDX-License-Identifier: Apache-2.0
"""One request over the real data path, with the time of each part. Main thread."""

from __future__ import annotations

from collections.abc import Sequence
import secrets
import subprocess
import time

import numpy as np

from benchmarks.harness.client import open_when_ready, PolicyClient, ZenohPolicyClient
from benchmarks.peers.comparison import RoundTripTime
from benchmarks.peers.peer_process import JOINT_NAMES, JOINTS, JPEG_QUALITY
from lerobot_serve.contract.cdr import Parts
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
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
FPS, IMAGE_THREADS = 30.0, 2
STATE = np.zeros((1, JOINTS), np.float32)


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

    def trip(self) -> RoundTripTime | None:
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
        # the stages; the network is all that neither the image encoder nor the server takes
        encode_ms, total_ms = (encoded_ns - begin_ns) / 1e6, (end_ns - begin_ns) / 1e6
        stages_ms = {
            'image_encode': encode_ms,
            'message_build': (built_ns - encoded_ns) / 1e6,
            'server_queue_wait': chunk.queue_wait_ms,
            'server_processing': chunk.processing_ms,
            'server_inference': chunk.inference_ms,
            'hand_over': (taken_ns - arrived.arrived_ns) / 1e6,
            'chunk_decode': (end_ns - taken_ns) / 1e6,
        }
        server_ms = chunk.queue_wait_ms + chunk.processing_ms + chunk.inference_ms
        stages_ms['network'] = total_ms - encode_ms - server_ms
        decode_ms = chunk.processing_ms if self._codec == Codec.JPEG else 0.0
        return RoundTripTime(total_ms, encode_ms + decode_ms, stages_ms)

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

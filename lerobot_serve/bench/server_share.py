"""
What the server itself adds to a request: everything but the network, the codec and the policy.

The real rooms in one thread of one process: a request of two JPEG cameras goes through the session
table, the mailbox, the scheduler, the decoder, the checks, a null policy and the encoder of
chunks. What decoding the images and the policy took of it is timed inside, and taken off. What a
trace adds is measured with real servers, see server_trace.
"""

from __future__ import annotations

from pathlib import Path
import time

import numpy as np

from benchmarks.harness.camera_images import camera_images
from benchmarks.merge import server_trace
from benchmarks.results.report import Case
from lerobot_serve.policies.base import LoadOptions
from lerobot_serve.policies.synthetic import null
from lerobot_serve.server.core import AdmissionSettings, ServerCore
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.inference.worker import InferenceWorker
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.sessions.session_validation import SessionRules
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.image_codec import ImageCodecPool
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Codec, MsgType, SCHEMA_VERSION
from lerobot_serve.wire.session import CameraSpec, SessionRequest

ABOUT = 'the server without network, codec and policy'
HEIGHT, WIDTH, JOINTS, THREADS, WARM_UP_ROUNDS = 480, 640, 6, 2, 20
PARAMETERS = {'cameras': f'2 x {HEIGHT}x{WIDTH} JPEG', 'image_threads': THREADS}
GOAL_MS = 2.0


class TimedPool(ImageCodecPool):
    """Knows how long the last decoding took."""

    decode_ms = 0.0

    def decode_all(self, images: tuple[Image, ...]) -> tuple[np.ndarray, ...]:
        begin_ns = time.perf_counter_ns()
        frames = super().decode_all(images)
        self.decode_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        return frames


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case for the server, and one for what a trace adds. Main thread."""
    return [measure_share(rounds), *server_trace.measure(max(4, rounds // 2), folder)]


def measure_share(rounds: int) -> Case:
    frames = camera_images(HEIGHT, WIDTH)
    pool = TimedPool(THREADS)
    encoded = pool.encode_all(frames, Codec.JPEG, 90)
    mailbox, serving = make_serving(frames)
    serving.worker.images = pool
    series_ms: dict[str, list[float]] = {'all': [], 'codec': [], 'policy': [], 'own share': []}
    for number in range(WARM_UP_ROUNDS + rounds):
        whole_ms, policy_ms = one_request(mailbox, serving, request(number, encoded))
        if number >= WARM_UP_ROUNDS:
            parts = whole_ms, pool.decode_ms, policy_ms, whole_ms - pool.decode_ms - policy_ms
            for name, value in zip(series_ms, parts, strict=True):
                series_ms[name].append(value)
    serving.worker.close()
    p99 = float(np.percentile(series_ms['own share'], 99))
    goal = f'own share p99 under {GOAL_MS:g} ms'
    return Case('one request', {}, {}, series_ms, {}, {goal: p99 < GOAL_MS})


def make_serving(frames: dict[str, np.ndarray]) -> tuple[RequestQueue, ServerCore]:
    cameras = '+'.join(f'{name.rpartition(".")[2]}:{HEIGHT}x{WIDTH}' for name in frames)
    path = f'joints={JOINTS},chunk=100,cameras={cameras},fps=30'
    statistics, mailbox = ServerStatistics(), RequestQueue()
    worker = InferenceWorker(
        null.load(LoadOptions(path)), slot='prod', statistics=statistics, image_threads=THREADS
    )
    rules = SessionRules(16, '', False, False, 0, 0, 1, 1)
    serving = ServerCore(worker, mailbox, statistics, rules, AdmissionSettings(False, 0.0))
    serving.begin()
    names = worker.served.action_names
    specs = tuple(CameraSpec(name, *frame.shape) for name, frame in frames.items())
    ask = SessionRequest('bench', 1, 1, '/bench/action_chunk', names, names, specs, 30.0)
    serving.open(ask, time.monotonic_ns())
    return mailbox, serving


def request(number: int, encoded: tuple[Image, ...]) -> bytes:
    header = Header(number, 0, 1, 0, SCHEMA_VERSION, MsgType.OBSERVATION)
    state = np.zeros((1, JOINTS), np.float32)
    return wire_observation.encode(Observation(header, 'bench', 'episode', state, encoded))


def one_request(mailbox: RequestQueue, serving: ServerCore, raw: bytes) -> tuple[float, float]:
    """Return how long all of it took, and the policy alone [ms]."""
    begin_ns = time.perf_counter_ns()
    serving.deposit(raw, time.monotonic_ns())
    ((_, chunk),) = serving.worker.answer(mailbox.take())
    wire_chunk.encode(chunk)
    return (time.perf_counter_ns() - begin_ns) / 1e6, chunk.inference_ms

"""
What images and messages cost to encode and decode, without any transport.

In each round every variant runs once, so that all of them meet the same machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import time

import numpy as np
from rclpy.serialization import deserialize_message, serialize_message
import simplejpeg

from benchmarks.harness.camera_images import camera_images
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.image_codec import decode, encode, ImageCodecPool
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Codec, MsgType, SCHEMA_VERSION
from lerobot_serve_interfaces.msg import ActionChunk
from lerobot_serve_interfaces.msg import Observation as ObservationMessage

ABOUT = 'JPEG and messages, encoded and decoded in one process'
SIZES = ((224, 224), (480, 640), (720, 1280))
QUALITY, THREADS, WARM_UP_ROUNDS = 90, 2, 5
CHUNK_ROWS, JOINTS = 100, 6
PARAMETERS = {
    'jpeg_quality': QUALITY,
    'pool_threads': THREADS,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'picture': 'what the simulated arm sees, with noise of 2 grey levels',
}
Actions = dict[str, Callable[[], object]]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each picture size and each kind of message. Main thread."""
    images = [measure_images(height, width, rounds) for height, width in SIZES]
    return [*images, *measure_messages(rounds)]


def measure_images(height: int, width: int, rounds: int) -> Case:
    """Return what the two pictures of one size cost, alone, one after the other and in a pool."""
    frames = camera_images(height, width)
    (name, frame), *_ = frames.items()
    ours = encode(name, frame, Codec.JPEG, quality=QUALITY)
    full = encode_444(frame)
    one, many = ImageCodecPool(1), ImageCodecPool(THREADS)
    both = one.encode_all(frames, Codec.JPEG, QUALITY)
    series = time_each(
        {
            'encode 4:2:0': lambda: encode(name, frame, Codec.JPEG, quality=QUALITY),
            'encode 4:4:4': lambda: encode_444(frame),
            'decode 4:2:0': lambda: decode(ours),
            'decode 4:4:4': lambda: simplejpeg.decode_jpeg(full, 'RGB', strict=True),
            'encode two, in turn': lambda: one.encode_all(frames, Codec.JPEG, QUALITY),
            'encode two, pool': lambda: many.encode_all(frames, Codec.JPEG, QUALITY),
            'decode two, in turn': lambda: one.decode_all(both),
            'decode two, pool': lambda: many.decode_all(both),
        },
        rounds,
    )
    many.close()
    sizes = {'raw_bytes': frame.nbytes, 'bytes_420': len(ours.data), 'bytes_444': len(full)}
    pairs = {
        'encode 4:2:0/4:4:4': ('encode 4:2:0', 'encode 4:4:4'),
        'decode 4:2:0/4:4:4': ('decode 4:2:0', 'decode 4:4:4'),
        'encode two, pool/in turn': ('encode two, pool', 'encode two, in turn'),
        'decode two, pool/in turn': ('decode two, pool', 'decode two, in turn'),
    }
    return case(f'{height}x{width}', sizes, series, pairs)


def encode_444(frame: np.ndarray) -> bytes:
    """Return the JPEG that keeps the full resolution of colour."""
    return simplejpeg.encode_jpeg(frame, QUALITY, 'RGB', colorsubsampling='444', fastdct=False)


def measure_messages(rounds: int) -> list[Case]:
    """Return what our bytes cost against the generated messages, which are already built."""
    observation, chunk = example_messages()
    return [
        measure_message(
            'observation, 2 x 480x640 raw',
            wire_observation,
            observation,
            ObservationMessage,
            rounds,
        ),
        measure_message('chunk, 100 x 6 twice', wire_chunk, chunk, ActionChunk, rounds),
    ]


def example_messages() -> tuple[Observation, Chunk]:
    header = Header(1, 2, 3, 4, SCHEMA_VERSION, MsgType.OBSERVATION)
    images = tuple(encode(n, f, Codec.RAW) for n, f in camera_images(480, 640).items())
    state = np.zeros((1, JOINTS), np.float32)
    rows = np.zeros((CHUNK_ROWS, JOINTS), np.float32)
    return (
        Observation(header, 'robot_1', 'episode-1', state, images, 'reach the target'),
        Chunk(
            header.answer(0), 'robot_1', 'episode-1', rows, rows, policy='null@0123456789abcdef'
        ),
    )


def measure_message(name: str, wire, value: object, kind: type, rounds: int) -> Case:
    raw = wire.encode(value)
    message = deserialize_message(raw, kind)
    series = time_each(
        {
            'wire encode': lambda: wire.encode(value),
            'serialize_message': lambda: serialize_message(message),
            'wire decode': lambda: wire.decode(raw),
            'deserialize_message': lambda: deserialize_message(raw, kind),
        },
        rounds,
    )
    pairs = {
        'encode, wire/rosidl': ('wire encode', 'serialize_message'),
        'decode, wire/rosidl': ('wire decode', 'deserialize_message'),
    }
    return case(name, {'bytes': len(raw)}, series, pairs)


def case(
    name: str,
    parameters: dict[str, object],
    series_ms: dict[str, list[float]],
    pairs: dict[str, tuple[str, str]],
) -> Case:
    ratios = {label: ratio(series_ms[a], series_ms[b]) for label, (a, b) in pairs.items()}
    return Case(name, parameters, {}, series_ms, ratios)


def time_each(actions: Actions, rounds: int) -> dict[str, list[float]]:
    """Return the durations [ms] of each action, which take turns."""
    series_ms: dict[str, list[float]] = {name: [] for name in actions}
    for done in range(WARM_UP_ROUNDS + rounds):
        for name, action in actions.items():
            begin_ns = time.perf_counter_ns()
            action()
            if done >= WARM_UP_ROUNDS:
                series_ms[name].append((time.perf_counter_ns() - begin_ns) / 1e6)
    return series_ms

# SPDX-License-Identifier: Apache-2.0
"""
What the cache of image embeddings saves, and what it costs where no image repeats.

A SmolVLA as small as it may be, and one with a vision encoder of some size, each loaded with and
without the cache; both predict the same request in turn, so that both meet the same machine. No
ROS: a server adds the same to both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
import tempfile
import time

import numpy as np

from benchmarks.policies import random_lerobot, small_act
from benchmarks.results.percentiles import pairwise_ratio
from benchmarks.results.report import Case
from lerobot_serve.policies.base import LoadOptions, PolicyRequest, Prediction
from lerobot_serve.policies.lerobot.compat import lerobot
from lerobot_serve.policies.lerobot.loader import load
from lerobot_serve.policies.lerobot.prediction.policy import LeRobotPolicy
from lerobot_serve.telemetry.durations import percentile

ABOUT = 'a request to a small SmolVLA with three cameras, with and without the embedding cache'
CAMERAS = tuple(f'observation.images.{name}' for name in ('front', 'wrist', 'top'))
HEIGHT, WIDTH = 48, 64
CACHE_MB = 64
# name of a case -> how many of the cameras give a new image with each request
MOVING = {'1 of 3 cameras changes': 1, 'no camera changes': 0, 'all cameras change': 3}
MAX_PRICE = 1.05
PARAMETERS = {
    'cameras': f'3 x {HEIGHT}x{WIDTH}',
    'cpu_threads': 1,
    'embedding_cache_mb': CACHE_MB,
    'order': 'in turn, each first in every other round; the state changes with each request',
}


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """The size of the images that the network sees, and of its parts."""

    pixels: int
    vision_hidden: int
    vision_layers: int
    hidden: int
    # fewer rounds for a slow network
    share_of_rounds: float = 1.0


SIZES = {
    'tiny': NetworkSize(pixels=64, vision_hidden=16, vision_layers=1, hidden=32),
    'small': NetworkSize(
        pixels=256, vision_hidden=192, vision_layers=4, hidden=192, share_of_rounds=0.5
    ),
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each network and number of cameras that change. Main thread."""
    cases = []
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            path = build(Path(scratch) / name, size)
            plain, cached = load_policy(path, 0), load_policy(path, CACHE_MB << 20)
        count = max(4, round(rounds * size.share_of_rounds))
        cases += [
            measure_case(f'{name}, {case}', plain, cached, moving, count)
            for case, moving in MOVING.items()
        ]
    return cases


def build(folder: Path, size: NetworkSize) -> Path:
    """Write a SmolVLA with random weights and return its folder. Raises PolicyError."""
    lerobot()
    from benchmarks.policies.smolvlm import build_vlm, TINY

    language_model = replace(
        TINY,
        image_pixels=size.pixels,
        hidden=size.hidden,
        intermediate=2 * size.hidden,
        vision_hidden=size.vision_hidden,
        vision_intermediate=2 * size.vision_hidden,
        vision_layers=size.vision_layers,
    )
    return random_lerobot.build_policy(
        'smolvla',
        folder,
        images=dict.fromkeys(CAMERAS, (HEIGHT, WIDTH)),
        joints=len(small_act.JOINTS),
        settings={
            'vlm_model_name': str(build_vlm(folder / 'vlm', language_model)),
            'load_vlm_weights': False,
            'num_vlm_layers': TINY.layers,
            'resize_imgs_with_padding': (size.pixels, size.pixels),
        },
    )


def load_policy(folder: Path, cache_bytes: int) -> LeRobotPolicy:
    return load(
        LoadOptions(
            path=str(folder),
            state_names=small_act.JOINTS,
            action_names=small_act.JOINTS,
            trained_fps=small_act.FPS,
            cpu_threads=1,
            embedding_cache_bytes=cache_bytes,
        )
    )


def measure_case(
    name: str, plain: LeRobotPolicy, cached: LeRobotPolicy, moving: int, rounds: int
) -> Case:
    """Predict the same requests with both. Main thread."""
    series_ms: dict[str, list[float]] = {'without a cache': [], 'with a cache': []}
    equal = True
    requests = changing_requests(moving)
    # the first request finds no image
    for policy in (plain, cached):
        policy.predict([next(requests)])
    cached.take_cache_counts()
    turns = list(zip((plain, cached), series_ms.values(), strict=True))
    for _ in range(rounds):
        request = next(requests)
        chunks = set()
        # the one that is first meets a request that is in no cache of the processor
        turns.reverse()
        for policy, durations_ms in turns:
            chunk, duration_ms = timed(policy, request)
            durations_ms.append(duration_ms)
            chunks.add(chunk.model.tobytes())
        equal = equal and len(chunks) == 1
    counts = cached.take_cache_counts()
    with_cache, without = series_ms['with a cache'], series_ms['without a cache']
    # of the two requests of a round, which meet the same machine
    figures = pairwise_ratio(with_cache, without)
    tail = (percentile(with_cache, 99) or 0.0) / (percentile(without, 99) or 1.0)
    goals = {'every chunk equals that without a cache, bit by bit': equal}
    if moving == len(CAMERAS):
        goals[f'at most {MAX_PRICE - 1:.0%} slower (median)'] = figures['median'] <= MAX_PRICE
    else:
        goals['faster (median)'] = figures['median'] < 1
    return Case(
        name,
        counts={'images_found': counts.hits, 'images_embedded': counts.misses},
        series_ms=series_ms,
        ratios={'with/without': figures, 'with/without, p99': {'whole run': round(tail, 3)}},
        goals=goals,
    )


def timed(policy: LeRobotPolicy, request: PolicyRequest) -> tuple[Prediction, float]:
    """Return the prediction and how long it took [ms]."""
    begin_s = time.perf_counter()
    (chunk,) = policy.predict([request])
    return chunk, (time.perf_counter() - begin_s) * 1e3


def changing_requests(moving: int) -> Iterator[PolicyRequest]:
    """Yield requests of one robot, of which the first `moving` cameras see something new."""
    draw = np.random.default_rng(moving)
    images = {name: (new_image(draw),) for name in CAMERAS}
    while True:
        images |= {name: (new_image(draw),) for name in CAMERAS[:moving]}
        state = draw.uniform(-1, 1, (1, len(small_act.JOINTS))).astype(np.float32)
        yield PolicyRequest('robot_1', state, dict(images), task='pick up the cube')


def new_image(draw: np.random.Generator) -> np.ndarray:
    return draw.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)

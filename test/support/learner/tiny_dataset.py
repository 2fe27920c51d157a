# SPDX-License-Identifier: Apache-2.0
"""A LeRobotDataset v3.0 of the simulated arm with pictures in its rows, without LeRobot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow
from pyarrow import parquet

from lerobot_serve.sim.arm import JOINT_NAMES

NAMES = [f'{name}.pos' for name in JOINT_NAMES]
CAMERAS = ('observation.images.front', 'observation.images.wrist')
FPS, PIXELS = 30, 16


@dataclass(frozen=True)
class Episode:
    """Who commanded each row, and the outcome."""

    sources: Sequence[str]
    outcome: str | None = 'success'


def write_dataset(root: Path, episodes: Sequence[Episode], **info: object) -> Path:
    """Write a dataset of random states, commands and pictures; `info` replaces its fields."""
    draw = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for number, episode in enumerate(episodes):
        for frame, source in enumerate(episode.sources):
            rows.append(row_of(draw, number, frame, source, len(rows)))
    write_rows(root, rows)
    content = {'codebase_version': 'v3.0', 'fps': FPS, 'features': features()} | info
    (root / 'meta/lerobot_serve').mkdir(parents=True)
    (root / 'meta/info.json').write_text(json.dumps(content))
    lines = [json.dumps({'outcome': episode.outcome}) for episode in episodes]
    (root / 'meta/lerobot_serve/episodes.jsonl').write_text(''.join(f'{ln}\n' for ln in lines))
    return root


def row_of(draw: np.random.Generator, episode: int, frame: int, source: str, step: int) -> dict:
    state = draw.uniform(-1, 1, len(NAMES)).astype(np.float32)
    return {
        'episode_index': episode,
        'frame_index': frame,
        'complementary_info.source': source,
        'complementary_info.control_step': step,
        'observation.state': state.tolist(),
        'action': (state + draw.normal(0, 0.1, len(NAMES)).astype(np.float32)).tolist(),
        **{name: {'bytes': picture(draw), 'path': None} for name in CAMERAS},
    }


def picture(draw: np.random.Generator) -> bytes:
    pixels = draw.integers(0, 256, (PIXELS, PIXELS, 3), np.uint8)
    return cv2.imencode('.png', pixels)[1].tobytes()


def write_rows(root: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as two files, where there are enough."""
    folder = root / 'data/chunk-000'
    folder.mkdir(parents=True, exist_ok=True)
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        table = pyarrow.Table.from_pylist(part, schema=SCHEMA)
        parquet.write_table(table, folder / f'file-{number:03}.parquet')


def read_rows(root: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(root.glob('data/*/*')) for row in parquet.read_table(file)
            .to_pylist()]  # fmt: skip


def features() -> dict[str, Any]:
    vector = {'dtype': 'float32', 'shape': [len(NAMES)], 'names': NAMES}
    shape = [PIXELS, PIXELS, 3]
    return {
        'observation.state': vector,
        'action': vector,
        **{name: {'dtype': 'image', 'shape': shape, 'names': None} for name in CAMERAS},
        'complementary_info.source': {'dtype': 'string', 'shape': [1], 'names': None},
        'complementary_info.control_step': {'dtype': 'int64', 'shape': [1], 'names': None},
    }


_FLOATS = pyarrow.list_(pyarrow.float32())
_PICTURE = pyarrow.struct([('bytes', pyarrow.binary()), ('path', pyarrow.string())])
SCHEMA = pyarrow.schema(
    [
        ('episode_index', pyarrow.int64()),
        ('frame_index', pyarrow.int64()),
        ('complementary_info.source', pyarrow.string()),
        ('complementary_info.control_step', pyarrow.int64()),
        ('observation.state', _FLOATS),
        ('action', _FLOATS),
        *((name, _PICTURE) for name in CAMERAS),
    ]
)

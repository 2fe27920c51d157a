# SPDX-License-Identifier: Apache-2.0
"""The verb `dataset` as a user calls it, and the rows that it wrote."""

from __future__ import annotations

from collections.abc import Iterable
import json
from pathlib import Path
from typing import Any

from pyarrow import parquet

from benchmarks.recording.example_bag import EdgeBag
from lerobot_serve.tools.cli.main import main


def dataset(*arguments: object) -> int:
    """Return the exit status."""
    return main(['dataset', *map(str, arguments)])


def rows_of(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / 'data').glob('*/*.parquet'))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def records_of(out: Path) -> list[dict[str, Any]]:
    """Return what a dataset says of its episodes."""
    text = (out / 'meta/lerobot_serve/episodes.jsonl').read_text()
    return [json.loads(line) for line in text.splitlines()]


def ids_of(out: Path) -> list[str]:
    return [each['episode_id'] for each in records_of(out)]


def bag_of(folder: Path, names: Iterable[str]) -> Path:
    """Record an episode of two to four rows for each name."""
    made = EdgeBag(folder)
    for number, name in enumerate(names):
        made.episode(name, 2 + number % 3, target_xy=(0.2 + 0.005 * number, 0.05))
    return made.close()

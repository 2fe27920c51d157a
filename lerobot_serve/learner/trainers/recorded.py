# SPDX-License-Identifier: Apache-2.0
"""
The rows of a dataset without its pictures, what became of its episodes, and what meta/info.json
says: names, rate, cameras. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.files.load import load, parsed, Refused
from lerobot_serve.files.parsing import from_json
from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.sampling import Int64Array, RowAuthors

INFO_FILE = Path('meta', 'info.json')
STATE, ACTION = 'observation.state', 'action'
VIDEO, IMAGE = 'video', 'image'
JSON_LIMIT_BYTES = 64 << 20
AGAIN = 'make the dataset again with `lerobot-serve dataset`'


class Column(Struct, frozen=True):
    """A column, of numbers or of the pictures of a camera."""

    dtype: str


class Vector(Struct, frozen=True):
    """A column of numbers with names."""

    names: tuple[str, ...]


class Vectors(Struct, frozen=True, rename={'state': STATE, 'action': ACTION}):
    """The columns that each dataset of a robot has."""

    state: Vector
    action: Vector


class InfoFile(Struct, frozen=True):
    """The fields that are read."""

    codebase_version: Annotated[str, Meta(pattern=r'^v3\.', description='v3.0')]
    fps: Annotated[float, Meta(gt=0)]
    features: dict[str, Column]
    video_path: str | None = None


class RecordedInfo:
    """`cameras` has the kind of each camera's column, VIDEO or IMAGE, by its name."""

    def __init__(self, root: Path) -> None:
        """Read the file of the dataset in a folder. Raises TrainerError."""
        place = root / INFO_FILE
        content = _content(root, place)
        try:
            info = load(InfoFile, content, str(place))
            vectors = load(Vectors, content['features'], f'{place}: features')
        except Refused as refused:
            raise TrainerError(f'{refused}; {AGAIN}') from None
        self.root, self.fps, self.video_path = root, info.fps, info.video_path or ''
        self.state_names, self.action_names = vectors.state.names, vectors.action.names
        self.columns = frozenset(info.features)
        self.cameras = {
            name: column.dtype
            for name, column in info.features.items()
            if column.dtype in (VIDEO, IMAGE)
        }


def _content(root: Path, place: Path) -> Any:
    try:
        return parsed(place, from_json, JSON_LIMIT_BYTES)
    except Refused as refused:
        raise TrainerError(f'{root} is not a LeRobotDataset: {refused}; {AGAIN}') from None


SOURCE, CONTROL_STEP = 'complementary_info.source', 'complementary_info.control_step'
EPISODE, FRAME = 'episode_index', 'frame_index'
OUTCOMES_FILE = Path('meta', 'lerobot_serve', 'episodes.jsonl')
SUCCESS = 'success'


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRows:
    """All rows in their order: N, N x joints, N x actions."""

    authors: RowAuthors
    frame: Int64Array
    control_step: Int64Array
    state: Float32Array
    action: Float32Array

    def __len__(self) -> int:
        return len(self.frame)


def read_rows(info: RecordedInfo) -> RecordedRows:
    """Return the rows. Raises TrainerError for a damaged or an empty dataset."""
    for name in (SOURCE, CONTROL_STEP):
        if name not in info.columns:
            raise TrainerError(
                f'{info.root} has no column {name}, so that nothing says which rows are worth '
                'learning; convert bags of an edge controller, without --robot'
            )
    columns = _columns(info)
    episode = np.asarray(columns[EPISODE], np.int64)
    if not len(episode):
        raise TrainerError(f'{info.root} has no rows; record episodes, then {AGAIN}')
    source = np.asarray(columns[SOURCE].to_pylist(), np.str_)
    rows = RecordedRows(
        RowAuthors(episode, source, _succeeded(info.root)),
        np.asarray(columns[FRAME], np.int64),
        np.asarray(columns[CONTROL_STEP], np.int64),
        _vectors(info, columns[STATE], STATE, len(info.state_names)),
        _vectors(info, columns[ACTION], ACTION, len(info.action_names)),
    )
    _check_finite(info, rows)
    return rows


def _check_finite(info: RecordedInfo, rows: RecordedRows) -> None:
    for name, values in ((STATE, rows.state), (ACTION, rows.action)):
        wrong = np.flatnonzero(~np.isfinite(values).all(1))
        if len(wrong):
            row = int(wrong[0])
            raise TrainerError(
                f'{info.root}: {len(wrong)} rows of {name} are not finite, the first is row '
                f'{int(rows.frame[row])} of episode {int(rows.authors.episode[row])}; leave its '
                f'bag out and {AGAIN}'
            )


def _columns(info: RecordedInfo) -> dict[str, Any]:
    from pyarrow import ArrowException, concat_tables, parquet

    names = [EPISODE, FRAME, CONTROL_STEP, SOURCE, STATE, ACTION]
    try:
        files = data_files(info.root)
        if not files:
            raise OSError('no files with rows')
        table = concat_tables([parquet.read_table(file, columns=names) for file in files])
        return {name: table.column(name) for name in names}
    except (OSError, KeyError, ArrowException) as error:
        raise TrainerError(f'{info.root} cannot be read: {error}; {AGAIN}') from None


def data_files(root: Path) -> list[Path]:
    """Return the files with the rows, in their order."""
    return sorted((root / 'data').glob('*/*.parquet'))


def _vectors(info: RecordedInfo, column: Any, name: str, count: int) -> Float32Array:
    """Return the lists of a column as an array, rows x count."""
    from pyarrow import compute

    lengths = set(compute.unique(compute.list_value_length(column)).to_pylist())
    if lengths != {count}:
        raise TrainerError(
            f'{info.root}: {name} has {count} names and rows of {sorted(lengths, key=str)} '
            f'values; {AGAIN}'
        )
    flat = compute.list_flatten(column).to_numpy()
    return np.asarray(flat, np.float32).reshape(len(column), count)


def _succeeded(root: Path) -> frozenset[int]:
    """Return the episodes with the outcome success."""
    return frozenset(
        number for number, line in enumerate(_lines(root)) if line.get('outcome') == SUCCESS
    )


def _lines(root: Path) -> Iterator[dict[str, Any]]:
    file = root / OUTCOMES_FILE
    try:
        for line in file.read_text(encoding='utf-8').splitlines():
            yield dict(json.loads(line))
    except (OSError, ValueError, TypeError) as error:
        raise TrainerError(
            f'{file} has the outcomes of the episodes and cannot be read: {error}; {AGAIN}'
        ) from None

# SPDX-License-Identifier: Apache-2.0
"""The rows of a dataset without its pictures, and what became of its episodes. One thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.recorded.info import ACTION, AGAIN, RecordedInfo, STATE
from lerobot_serve.learner.trainers.sampling import Int64Array, RowAuthors

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

# SPDX-License-Identifier: Apache-2.0
"""The pictures of some rows, scaled for a network as the policy scales them. One thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.recorded import (
    AGAIN,
    data_files,
    RecordedInfo,
    RecordedRows,
    VIDEO,
)
from lerobot_serve.learner.trainers.sampling import Int64Array
from lerobot_serve.picture_headers import check_picture, UnreadablePicture

BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class VideoEpisode:
    """Where an episode is in a video file: its first frame, and its first row of the dataset."""

    begin: int
    length: int
    first_row: int


def read_pictures(
    info: RecordedInfo,
    rows: RecordedRows,
    wanted: Int64Array,
    camera: str,
    scale: Callable[[Uint8Array], Uint8Array],
    tick: Callable[[], None],
) -> Uint8Array:
    """
    Return the pictures of the wanted rows, which are in order and different, as `scale` makes them
    of RGB. `tick` is called now and then; what it raises ends the reading. Raises TrainerError.
    """
    found: list[Uint8Array] = []
    places = iter(wanted.tolist())
    next_row = next(places, None)
    is_video = info.cameras[camera] == VIDEO
    pictures = _video_frames(info, rows, camera) if is_video else _row_pictures(info, camera)
    for row, picture in pictures:
        if row % BATCH_ROWS == 0:
            tick()
        if row == next_row:
            found.append(scale(picture()))
            next_row = next(places, None)
            if next_row is None:
                break
    if len(found) != len(wanted):
        raise TrainerError(
            f'{info.root} lacks the picture of {camera} for row {next_row}; check the dataset '
            f'with `lerobot-serve dataset --check`, or {AGAIN}'
        )
    return np.stack(found)


def _row_pictures(
    info: RecordedInfo, camera: str
) -> Iterator[tuple[int, Callable[[], Uint8Array]]]:
    """Yield the number of each row, and a function that decodes its picture."""
    from pyarrow import ArrowException, parquet

    row = 0
    try:
        for path in data_files(info.root):
            for batch in parquet.ParquetFile(path).iter_batches(BATCH_ROWS, columns=[camera]):
                for cell in batch.column(0):
                    place = f'{path}: row {row} of {camera}'
                    yield row, partial(_decoded, cell, place)
                    row += 1
    except (OSError, ArrowException) as error:
        raise TrainerError(f'{info.root} cannot be read: {error}; {AGAIN}') from None


def _decoded(cell: Any, place: str) -> Uint8Array:
    data: bytes = (cell.as_py() or {}).get('bytes') or b''
    if not data:
        raise TrainerError(f'{place} has no picture; {AGAIN}')
    try:
        check_picture(data)
    except UnreadablePicture as error:
        raise TrainerError(f'{place} has a picture that {error}; {AGAIN}') from None
    frame: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if frame is None:
        raise TrainerError(f'{place} has no picture that can be decoded; {AGAIN}')
    return np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8)


def _video_frames(
    info: RecordedInfo, rows: RecordedRows, camera: str
) -> Iterator[tuple[int, Callable[[], Uint8Array]]]:
    """Yield the number of each row, and a function that converts its frame."""
    for path, episodes in _video_files(info, rows, camera):
        for number, frame in _frames(path, info.fps):
            for one in episodes:
                if one.begin <= number < one.begin + one.length:
                    yield one.first_row + number - one.begin, partial(_rgb, frame)


def _rgb(frame: Any) -> Uint8Array:
    return np.asarray(frame.to_ndarray(format='rgb24'), np.uint8)


def _frames(path: Path, fps: float) -> Iterator[tuple[int, Any]]:
    """Yield each frame of a video with its number, by its time. Raises TrainerError."""
    try:
        import av
    except ImportError as error:
        raise TrainerError(
            f'{path}: videos need PyAV ({error}): install `av`, or make the dataset with '
            '--vcodec png'
        ) from None
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = 'AUTO'
            for frame in container.decode(stream):
                yield round(frame.time * fps), frame
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise TrainerError(
            f'{path} cannot be decoded here: {error}; make the dataset with --vcodec png, or '
            'check it with `lerobot-serve dataset --check`'
        ) from None


def _video_files(
    info: RecordedInfo, rows: RecordedRows, camera: str
) -> list[tuple[Path, list[VideoEpisode]]]:
    """Return the files of a camera in the order of their episodes."""
    files: dict[Path, list[VideoEpisode]] = {}
    episode = rows.authors.episode
    try:
        for one in _episode_places(info.root, camera):
            path = info.root / info.video_path.format(
                video_key=camera, chunk_index=one['chunk_index'], file_index=one['file_index']
            )
            own = np.searchsorted(episode, [one['episode'], one['episode'] + 1])
            first, last = own.tolist()
            begin = round(one['from_timestamp'] * info.fps)
            files.setdefault(path, []).append(VideoEpisode(begin, last - first, first))
    except (OSError, KeyError, IndexError, ValueError, TypeError) as error:
        raise TrainerError(
            f'{info.root}: the places of the videos of {camera} cannot be read: {error}; {AGAIN}'
        ) from None
    return list(files.items())


def _episode_places(root: Path, camera: str) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    names = ('chunk_index', 'file_index', 'from_timestamp')
    for file in sorted((root / 'meta' / 'episodes').glob('*/*.parquet')):
        columns = ['episode_index', *(f'videos/{camera}/{name}' for name in names)]
        for row in parquet.read_table(file, columns=columns).to_pylist():
            yield dict(zip(('episode', *names), (row[name] for name in columns), strict=True))

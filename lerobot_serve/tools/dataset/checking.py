# SPDX-License-Identifier: Apache-2.0
"""
Compare the episodes of a dataset with each other, and its frames with its rows. One thread; reads
with PyArrow, PyAV and OpenCV.

LeRobot finds a frame by its time within a file that holds several episodes, so that one frame too
few shifts all that follow. Each file must have as many frames as its episodes have rows, and each
episode must begin where the last one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import json
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.picture_headers import check_picture, UnreadablePicture
from lerobot_serve.tools.dataset import lerobot_writer
from lerobot_serve.tools.dataset.episodes import DatasetError, EpisodePlan, RecordedRobot
from lerobot_serve.tools.dataset.features import (
    differences,
    Feature,
    Features,
    features_of,
    FrameShape,
    IMAGE,
    SUCCESS,
    VIDEO,
)
from lerobot_serve.tools.dataset.records import Existing
from lerobot_serve.tools.dataset.settings import DatasetOptions, PICTURES

# of a frame: an episode begins at the time of its first
BEGIN_TOLERANCE = 0.25
BATCH_ROWS = 64


def check_dataset(root: Path, *, decode: bool) -> list[str]:
    """
    Return what is wrong, one line for each fault. Without `decode` frames are counted by their
    packets, which takes a fraction of the time. Raises OSError.
    """
    try:
        info = json.loads((root / 'meta/info.json').read_text())
        episodes = _read_tables(root / 'meta/episodes')
        rows = _read_tables(root / 'data', ['episode_index', 'frame_index', 'index'])
    except (ValueError, KeyError, FileNotFoundError) as error:
        return [f'{root} is not a whole LeRobotDataset: {error}']
    faults = list(_row_faults(info, episodes, rows))
    for key, feature in info['features'].items():
        if feature['dtype'] == VIDEO:
            faults += _video_faults(root, info, episodes, key, decode)
        elif feature['dtype'] == IMAGE:
            faults += _picture_faults(root, key, feature['shape'], decode)
    return faults


def _row_faults(
    info: dict[str, Any], episodes: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> Iterator[str]:
    wanted = [(one['episode_index'], i) for one in episodes for i in range(one['length'])]
    if [(row['episode_index'], row['frame_index']) for row in rows] != wanted:
        yield f'{len(rows)} rows do not fit {len(episodes)} episodes of {len(wanted)} rows'
    if (info['total_frames'], info['total_episodes']) != (len(wanted), len(episodes)):
        yield (
            f'info.json has {info["total_frames"]} rows and {info["total_episodes"]} episodes, '
            f'the dataset {len(wanted)} and {len(episodes)}'
        )


def _video_faults(
    root: Path,
    info: dict[str, Any],
    episodes: list[dict[str, Any]],
    key: str,
    decode: bool,
) -> Iterator[str]:
    files: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in episodes:
        place = one[f'videos/{key}/chunk_index'], one[f'videos/{key}/file_index']
        files.setdefault(place, []).append(one)
    for (chunk, number), inside in files.items():
        path = root / info['video_path'].format(
            video_key=key, chunk_index=chunk, file_index=number
        )
        yield from _file_faults(path, inside, key, info['fps'], decode)


def _file_faults(
    path: Path,
    inside: list[dict[str, Any]],
    key: str,
    fps: float,
    decode: bool,
) -> Iterator[str]:
    rows = 0
    for one in inside:
        begin = one[f'videos/{key}/from_timestamp'] * fps
        if abs(begin - rows) > BEGIN_TOLERANCE:
            yield (
                f'{path}: episode {one["episode_index"]} begins at frame {begin:.2f}, '
                f'{rows} frames belong to episodes before it'
            )
        rows += one['length']
    try:
        times = list(frame_times(path, decode=decode))
    except (OSError, ValueError) as error:
        yield f'{path} cannot be read: {error}'
        return
    if len(times) != rows:
        yield f'{path} has {len(times)} frames for {rows} rows'
    shifted = [i for i, at_s in enumerate(sorted(times)) if abs(at_s * fps - i) > BEGIN_TOLERANCE]
    if shifted:
        yield f'{path}: frame {shifted[0]} is not at its time'


def _picture_faults(
    root: Path,
    key: str,
    shape: list[int],
    decode: bool,
) -> Iterator[str]:
    """Each row has a picture; with `decode` it is read and has the size of its column."""
    from pyarrow import parquet

    for path in sorted((root / 'data').glob('*/*.parquet')):
        number, file = 0, parquet.ParquetFile(path)
        if key not in file.schema_arrow.names:
            yield f'{path} has no column {key}'
            continue
        # a few rows at once: a file may be larger than the memory
        for batch in file.iter_batches(BATCH_ROWS, columns=[key]):
            for picture in batch.column(0).to_pylist():
                fault = _picture_fault((picture or {}).get('bytes'), shape, decode)
                if fault:
                    yield f'{path}: row {number} of {key} {fault}'
                number += 1


def _picture_fault(data: bytes | None, shape: list[int], decode: bool) -> str:
    if not data:
        return 'has no picture'
    if not decode:
        return ''
    try:
        check_picture(data)
    except UnreadablePicture as error:
        return f'has a picture that {error}'
    frame = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    # stubs of OpenCV do not know that it may be None
    if cast(object, frame) is None:
        return 'cannot be decoded'
    height, width, *_ = frame.shape
    return '' if [height, width] == list(shape[:2]) else f'has {width}x{height} pixels'


def frame_times(path: Path, *, decode: bool) -> Iterator[float]:
    """Yield the time of each frame [s]. Raises OSError, ValueError (as PyAV's errors are)."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = 'AUTO'
        step = stream.time_base
        if step is None:
            raise ValueError('no time base')
        found = container.decode(stream) if decode else container.demux(stream)
        for one in found:
            # the last packet is empty
            if one.pts is not None:
                yield float(one.pts * step)


def _read_tables(folder: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of all Parquet files of a folder in order, without statistics."""
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    files = sorted(folder.glob('*/*.parquet'))
    if not files:
        raise FileNotFoundError(f'{folder} has no Parquet files')
    for file in files:
        names = columns or [
            name for name in parquet.read_schema(file).names if not name.startswith('stats/')
        ]
        rows += parquet.read_table(file, columns=names).to_pylist()
    return rows


COLOR_CHANNELS = 3


def agreed_features(
    plans: Sequence[EpisodePlan],
    shapes: Mapping[str, Mapping[str, FrameShape]],
    there: Existing | None,
    out: Path,
    options: DatasetOptions,
    note: Callable[[str], None],
) -> Features:
    """
    Return the features of all episodes; `shapes` by the digests of robot files. Raises
    DatasetError where episodes, or the dataset that is there, differ.
    """
    is_labelled = _is_labelled(plans, there, note)

    def of(robot: RecordedRobot) -> Features:
        return features_of(
            robot,
            shapes[robot.digest],
            is_labelled=is_labelled,
            is_sampled=options.robot_file is not None,
            has_videos=options.has_videos,
        )

    first = plans[0]
    features = of(first.robot)
    for plan in plans:
        found = differences(features, of(plan.robot), fps=(first.fps, plan.fps))
        if first.robot.description.name != plan.robot.description.name:
            found.append(f'robot: {plan.robot.description.name!r}')
        if found:
            raise DatasetError(
                f'{plan.title} differs from {first.title}; convert one robot at a time with '
                '--robot-name:\n' + '\n'.join(f'  {line}' for line in found)
            )
    if there:
        _check_existing(features, first, there, out, options)
    return features


def _is_labelled(
    plans: Sequence[EpisodePlan], there: Existing | None, note: Callable[[str], None]
) -> bool:
    unlabelled = [plan for plan in plans if plan.label is None]
    if unlabelled and len(unlabelled) < len(plans):
        note(
            f'no column {SUCCESS}: {len(unlabelled)} of {len(plans)} episodes have no outcome '
            '(--filter success failure keeps those that have one)'
        )
    return not unlabelled and (there is None or SUCCESS in there.features)


def _check_existing(
    features: Features, first: EpisodePlan, there: Existing, out: Path, options: DatasetOptions
) -> None:
    """Raise DatasetError with how the existing dataset differs."""
    found = differences(features, there.features, fps=(first.fps, there.fps))
    name = first.robot.description.name
    if there.robot_type != name:
        found.append(f'robot: {there.robot_type!r} in the dataset, {name!r} in the bags')
    for column, feature in there.features.items():
        codec = _encoder(feature)
        if codec not in ('', options.vcodec):
            found.append(f'{column}: --vcodec {codec} in the dataset')
    if found:
        lines = '\n'.join(f'  {line}' for line in found)
        raise DatasetError(f'{out} has other features:\n{lines}')


def _encoder(feature: Feature) -> str:
    """Return the --vcodec of a camera of an existing dataset; empty for unknown or not needed."""
    if feature['dtype'] == VIDEO:
        return lerobot_writer.video_codec(feature)
    # depth is never a video
    is_color = feature['dtype'] == IMAGE and feature['shape'][-1] == COLOR_CHANNELS
    return PICTURES if is_color else ''


def check_only(out: Path) -> list[str]:
    """Return what is wrong with an existing dataset. Raises WrongCommandLine."""
    if not out.is_dir():
        raise WrongCommandLine(f'{out} is not a dataset; name its folder')
    return check_dataset(out, decode=True)

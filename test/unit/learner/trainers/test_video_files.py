# SPDX-License-Identifier: Apache-2.0
"""Frames of a video file that holds several episodes, as LeRobot joins them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip('av', reason='reads videos (TORCH=none)')
pyarrow = pytest.importorskip('pyarrow', reason='reads datasets (TORCH=none)')

from pyarrow import parquet  # noqa: E402
from support.learner.tiny_dataset import (  # noqa: E402
    CAMERAS,
    Episode,
    features,
    FPS,
    write_dataset,
)

from lerobot_serve.learner.trainers.base import TrainerError, TrainingStopped  # noqa: E402
from lerobot_serve.learner.trainers.pictures import read_pictures  # noqa: E402
from lerobot_serve.learner.trainers.recorded import read_rows, RecordedInfo  # noqa: E402

CAMERA, PATH = CAMERAS[0], 'videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mkv'
# episodes in files: two in the first, one in the second
LENGTHS, FILES = (4, 3, 5), (0, 0, 1)


def write_video(file: Path, first: int, count: int) -> None:
    """Write pictures without loss whose brightness is 10 for each row of the dataset."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), 'w') as container:
        stream = container.add_stream('ffv1', rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 16, 16, 'bgr0'
        stream.time_base = Fraction(1, FPS)
        for number in range(count):
            pixels = np.full((16, 16, 3), 10 * (first + number), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format='rgb24')
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.fixture
def data(tmp_path) -> Path:
    kinds = features() | {CAMERA: {'dtype': 'video'}}
    episodes = [Episode(['person'] * length) for length in LENGTHS]
    root = write_dataset(tmp_path / 'data', episodes, features=kinds, video_path=PATH)
    for number, (first, count) in enumerate(((0, 7), (7, 5))):
        write_video(root / PATH.format(video_key=CAMERA, chunk_index=0, file_index=number),
                    first, count)  # fmt: skip
    folder = root / 'meta/episodes/chunk-000'
    folder.mkdir(parents=True)
    places = {
        'episode_index': [0, 1, 2],
        f'videos/{CAMERA}/chunk_index': [0, 0, 0],
        f'videos/{CAMERA}/file_index': list(FILES),
        f'videos/{CAMERA}/from_timestamp': [0.0, 4 / FPS, 0.0],
    }
    parquet.write_table(pyarrow.table(places), folder / 'file-000.parquet')
    return root


def brightness(root: Path, wanted: list[int], tick=lambda: None) -> list[float]:
    info = RecordedInfo(root)
    found = read_pictures(
        info, read_rows(info), np.array(wanted), CAMERA, lambda picture: picture, tick
    )
    return found.mean(axis=(1, 2, 3)).tolist()


@pytest.mark.parametrize('wanted', [list(range(12)), [3, 4, 6, 7, 11], [5]])
def test_each_row_has_its_frame(data, wanted):
    assert brightness(data, wanted) == [10 * row for row in wanted]


def test_a_file_with_too_few_frames_is_refused(data):
    write_video(data / PATH.format(video_key=CAMERA, chunk_index=0, file_index=1), 7, 3)
    with pytest.raises(TrainerError, match=r'lacks the picture of .* for row 10; check'):
        brightness(data, [9, 10])


def test_a_file_that_is_missing_or_damaged_is_refused(data):
    file = data / PATH.format(video_key=CAMERA, chunk_index=0, file_index=1)
    file.write_bytes(b'none')
    with pytest.raises(TrainerError, match=r'cannot be decoded here: .*--vcodec png'):
        brightness(data, [9])
    file.unlink()
    with pytest.raises(TrainerError, match=r'cannot be decoded here: .*--vcodec png'):
        brightness(data, [9])


def test_reading_can_be_stopped(data):
    def stop():
        raise TrainingStopped

    with pytest.raises(TrainingStopped):
        brightness(data, [9], stop)

# SPDX-License-Identifier: Apache-2.0
"""Datasets without videos: each picture is in its row, exactly, and LeRobot reads it by itself."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
from support.tools.datasets import dataset, rows_of

from benchmarks.recording.example_bag import EdgeBag

pytest.importorskip('lerobot')
pytestmark = pytest.mark.slow

FRONT = 'observation.images.front'


@pytest.fixture
def recorded(tmp_path):
    """A bag with two episodes, and the frames of its front camera in their order."""
    frames = []

    def paint(step):
        generator = np.random.default_rng(len(frames))
        frames.append(generator.integers(0, 256, (48, 64, 3), np.uint8))
        step.frames['front'] = frames[-1]

    made = EdgeBag(tmp_path / 'bag')
    made.episode('one', 5, change=paint)
    made.episode('two', 1, change=paint)
    return made.close(), frames


def data_file(out: Path) -> Path:
    (file,) = (out / 'data').glob('*/*.parquet')
    return file


def test_each_row_has_its_pictures_exactly(recorded, tmp_path, capsys):
    bag, frames = recorded
    out = tmp_path / 'out'
    assert dataset(bag, out, '--vcodec', 'png', '--check') == 0
    assert 'as many frames as rows of every camera' in capsys.readouterr().out
    assert not list(out.rglob('*.mp4'))
    rows = rows_of(out)
    for row, frame in zip(rows, frames, strict=True):
        png = np.frombuffer(row[FRONT]['bytes'], np.uint8)
        assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR)[:, :, ::-1], frame)


def test_lerobot_loads_a_row_with_its_pictures(recorded, tmp_path):
    bag, frames = recorded
    assert dataset(bag, tmp_path / 'out', '--vcodec', 'png') == 0
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    loaded = LeRobotDataset('local/x', root=tmp_path / 'out')
    for number, frame in enumerate(frames):
        read = loaded[number][FRONT].permute(1, 2, 0).numpy() * 255
        assert np.array_equal(read.round().astype(np.uint8), frame)


def test_videos_and_pictures_do_not_mix(recorded, tmp_path, capsys):
    bag, _ = recorded
    out = tmp_path / 'out'
    assert dataset(bag, out, '--vcodec', 'png') == 0
    more = EdgeBag(tmp_path / 'more')
    more.episode('three', 2)
    assert dataset(more.close(), out, '--append') == 1
    assert f'{FRONT}: --vcodec png in the dataset' in capsys.readouterr().err
    assert dataset(tmp_path / 'more', out, '--append', '--vcodec', 'png', '--check') == 0


@pytest.mark.parametrize(
    ('change', 'fault'),
    [
        (lambda png: None, f'row 3 of {FRONT} has no picture'),
        (lambda png: png[: len(png) // 2], f'row 3 of {FRONT} cannot be decoded'),
        (
            lambda png: cv2.imencode('.png', np.zeros((48, 48, 3), np.uint8))[1].tobytes(),
            f'row 3 of {FRONT} has 48x48 pixels',
        ),
    ],
)
def test_check_finds_a_damaged_picture(recorded, tmp_path, capsys, change, fault):
    bag, _ = recorded
    out = tmp_path / 'out'
    assert dataset(bag, out, '--vcodec', 'png') == 0
    table = parquet.read_table(data_file(out))
    pictures = table[FRONT].to_pylist()
    pictures[3]['bytes'] = change(pictures[3]['bytes'])
    column = pyarrow.array(pictures, table.schema.field(FRONT).type)
    place = table.schema.get_field_index(FRONT)
    parquet.write_table(table.set_column(place, FRONT, column), data_file(out))
    assert dataset('--check', out) == 1
    assert fault in capsys.readouterr().out


def test_check_names_a_column_that_is_gone(recorded, tmp_path, capsys):
    bag, _ = recorded
    out = tmp_path / 'out'
    assert dataset(bag, out, '--vcodec', 'png') == 0
    parquet.write_table(parquet.read_table(data_file(out)).drop_columns([FRONT]), data_file(out))
    assert dataset('--check', out) == 1
    assert f'{data_file(out)} has no column {FRONT}' in capsys.readouterr().out

# SPDX-License-Identifier: Apache-2.0
"""Bags become a LeRobotDataset: values, frames, groups, append, kills, disk and locks."""

from __future__ import annotations

from pathlib import Path
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest
from support.tools.datasets import bag_of, dataset, ids_of, records_of, rows_of

from benchmarks.recording.example_bag import EdgeBag, ROBOT_FILE
from lerobot_serve.tools.dataset import convert, lerobot_writer
from lerobot_serve.tools.dataset.checking import check_dataset, frame_times
from lerobot_serve.tools.dataset.episodes import MessageKey
from lerobot_serve.tools.dataset.staging import Staging
from lerobot_serve_interfaces.msg import EpisodeOutcome, ExecutedAction

pytest.importorskip('lerobot')
pytestmark = pytest.mark.slow

FRONT = 'observation.images.front'
ABOUT = 'complementary_info.'


@pytest.fixture
def bag(tmp_path):
    """A bag with a helped success, a failure of one row, and an attempt with a ladder."""

    def by_person(step):
        if step.number in (2, 3):
            step.action.source = ExecutedAction.SOURCE_PERSON
            step.action.policy_action = [0.5] * 6

    def by_ladder(step):
        if step.number == 1:
            step.action.source, step.action.rung = ExecutedAction.SOURCE_LADDER, 2
            step.action.cage_result = ExecutedAction.CLAMPED

    made = EdgeBag(tmp_path / 'bag')
    made.episode('helped', 8, change=by_person)
    made.episode('failed', 1, outcome=EpisodeOutcome.FAILURE, task='fold')
    made.episode('held', 5, change=by_ladder)
    return made.close()


def test_a_dataset_has_what_was_seen_and_done(bag, tmp_path):
    out = tmp_path / 'out'
    assert dataset(bag, out, '--check') == 0
    rows = rows_of(out)
    assert [row['episode_index'] for row in rows] == [0] * 8 + [1] + [2] * 5
    assert [row['intervention'] for row in rows[:5]] == [False, False, True, True, False]
    assert rows[2][f'{ABOUT}policy_action'] == [0.5] * 6
    assert rows[2][f'{ABOUT}source'] == 'person'
    assert rows[0][f'{ABOUT}policy_action'] == pytest.approx(rows[0]['action'])
    held = rows[10]
    assert (held[f'{ABOUT}source'], held[f'{ABOUT}rung'], held[f'{ABOUT}verdict']) == (
        *('ladder', 'hold'),
        'clamped',
    )
    # what the policy wanted is not known
    assert [i for i, row in enumerate(rows) if not row[f'{ABOUT}has_policy_action']] == [10]
    assert [row['next.done'] for row in rows] == [False] * 7 + [True, True] + [False] * 4 + [True]
    assert [i for i, row in enumerate(rows) if row['next.success']] == [7, 13]
    assert [line['outcome'] for line in records_of(out)] == ['success', 'failure', 'success']
    assert (
        out / 'meta/lerobot_serve' / records_of(out)[0]['robot_file']
    ).read_text() == ROBOT_FILE
    assert not out.with_name('out.staging').exists()


def test_lerobot_loads_it_and_frames_are_those_of_their_rows(tmp_path):
    """Each frame has a brightness of its own, so that one shifted by a row is seen."""

    def shade(step):
        for name in step.frames:
            step.frames[name] = np.full((48, 64, 3), 20 + 12 * step.number, np.uint8)

    made = EdgeBag(tmp_path / 'bag')
    for name, length in (('a', 12), ('b', 1), ('c', 15)):
        made.episode(name, length, change=shade)
    out = tmp_path / 'out'
    assert dataset(made.close(), out) == 0
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.datasets.utils import load_nested_dataset

    assert load_nested_dataset(out / 'data').num_rows == 28
    loaded = LeRobotDataset('local/x', root=out)
    # without the frames: torchvision 0.28 has no reader of videos
    loaded.meta.info['features'] = {
        key: feature
        for key, feature in loaded.features.items()
        if not key.startswith('observation.images')
    }
    assert loaded[27]['action'].shape == (6,)
    assert (loaded.num_episodes, loaded.num_frames, loaded.fps) == (3, 28, 30)
    assert loaded[12]['task'] == 'reach the disc'
    lengths = iter((12, 1, 15))
    for path in sorted((out / 'videos' / FRONT).rglob('*.mp4')):
        assert brightness(path) == pytest.approx(
            [20 + 12 * i for i in range(next(lengths))], abs=4
        )


def brightness(path: Path) -> list[float]:
    import av

    with av.open(str(path)) as container:
        return [frame.to_ndarray(format='rgb24').mean() for frame in container.decode(video=0)]


def test_the_same_bag_gives_the_same_bytes(bag, tmp_path):
    for name in ('one', 'two'):
        assert dataset(bag, tmp_path / name) == 0
    files = [f.relative_to(tmp_path / 'one') for f in (tmp_path / 'one').rglob('*.parquet')]
    assert len(files) == 3
    for file in files:
        assert (tmp_path / 'one' / file).read_bytes() == (tmp_path / 'two' / file).read_bytes()


def test_append_adds_what_is_new_and_counts_what_is_there(bag, tmp_path, capsys):
    out = tmp_path / 'out'
    assert dataset(bag, out) == 0
    more = EdgeBag(tmp_path / 'more')
    more.episode('another', 4)
    assert dataset(bag, more.close(), out, '--append', '--check') == 0
    text = capsys.readouterr().out
    assert '1 episodes added, 4 rows; 3 in the dataset before' in text
    assert ids_of(out) == ['helped', 'failed', 'held', 'another']
    assert len(rows_of(out)) == 18 and check_dataset(out, decode=True) == []


def test_other_features_are_refused_with_the_difference(bag, tmp_path, capsys):
    out = tmp_path / 'out'
    assert dataset(bag, out) == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob('*'))
    big = EdgeBag(tmp_path / 'big', size=(64, 64))
    big.episode('big', 2, outcome=None)
    assert dataset(big.close(), out, '--append') == 1
    text = capsys.readouterr().err
    assert f'{FRONT}: shape [48, 64, 3] in the dataset, [64, 64, 3] in the bags' in text
    assert 'next.success: not in the bags' in text
    assert dataset(bag, out) == 1
    assert 'exists already' in capsys.readouterr().err
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob('*')) == before


def test_one_attempt_without_an_outcome_leaves_all_without_a_success_column(tmp_path, capsys):
    made = EdgeBag(tmp_path / 'bag')
    made.episode('known', 3)
    made.episode('unknown', 3, outcome=None)
    made.close()
    assert dataset(tmp_path / 'bag', tmp_path / 'all') == 0
    assert 'next.success' not in rows_of(tmp_path / 'all')[0]
    assert '1 of 2 episodes have no outcome' in capsys.readouterr().err
    assert dataset(tmp_path / 'bag', tmp_path / 'some', '--filter', 'success', 'failure') == 0
    assert [row['next.success'] for row in rows_of(tmp_path / 'some')] == [False, False, True]


def test_a_frame_that_cannot_be_decoded_counts_as_missing(tmp_path):
    def break_one(step):
        step.compressed = True
        if step.number == 4:
            step.frames['front'] = np.zeros((24, 32, 3), np.uint8)

    made = EdgeBag(tmp_path / 'bag')
    made.episode('one', 8, change=break_one)
    out = tmp_path / 'out'
    assert dataset(made.close(), out, '--check') == 0
    assert [row[f'{ABOUT}control_step'] for row in rows_of(out)] == [0, 1, 2, 3, 5, 6, 7]


def test_the_passes_over_a_bag_are_bounded(bag, tmp_path, monkeypatch, capsys):
    passes = []

    def find_another(*_):
        passes.append(1)
        return {MessageKey('/arm/joint_states', 1000 + len(passes)): 'odd'}

    monkeypatch.setattr(convert._Conversion, '_write', find_another)
    assert dataset(bag, tmp_path / 'out') == 1
    assert 'in each of 10 passes; the last: odd' in capsys.readouterr().err
    assert len(passes) == 10 and not (tmp_path / 'out').exists()


def test_depth_of_16_bits_is_kept_exactly(tmp_path):
    depths = []

    def deepen(step):
        depth = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 20 + step.number
        step.frames['wrist'] = depth
        depths.append(depth)

    made = EdgeBag(tmp_path / 'bag')
    made.episode('one', 3, change=deepen)
    made.episode('two', 2, change=deepen)
    out = tmp_path / 'out'
    assert dataset(made.close(), out, '--check') == 0
    rows = rows_of(out)
    assert len(rows) == 5
    for row, depth in zip(rows, depths, strict=True):
        png = np.frombuffer(row['observation.depth.wrist']['bytes'], np.uint8)
        assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_UNCHANGED), depth)


def test_depth_in_metres_is_refused_or_stored_in_millimetres(tmp_path, capsys):
    metres = np.full((48, 64), 1.2344, np.float32)
    metres[0, :6] = np.nan, np.inf, -np.inf, -0.5, 65.535, 65.5361

    def deepen(step):
        step.frames['wrist'] = metres

    made = EdgeBag(tmp_path / 'bag')
    made.episode('one', 3, change=deepen)
    bag, out = made.close(), tmp_path / 'out'
    assert dataset(bag, out) == 1
    assert '--depth-millimetres stores the nearest millimetre' in capsys.readouterr().err
    assert dataset(bag, out, '--depth-millimetres', '--check') == 0
    png = np.frombuffer(rows_of(out)[0]['observation.depth.wrist']['bytes'], np.uint8)
    stored = cv2.imdecode(png, cv2.IMREAD_UNCHANGED)
    assert stored[0, :6].tolist() == [0, 0, 0, 0, 65535, 0]
    assert (stored[1:] == 1234).all()
    assert 'nearest millimetre' in records_of(out)[0]['float_depth']


def test_a_killed_conversion_goes_on(tmp_path):
    """Killed at any moment, the next start finishes: as many frames as rows, nothing twice."""
    made = EdgeBag(tmp_path / 'bag', size=(120, 160))
    for number in range(6):
        made.episode(f'e{number}', 40)
    bag, out = made.close(), tmp_path / 'out'
    staging = out.with_name('out.staging')
    command = ['lerobot-serve', 'dataset', str(bag), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    limit_s = time.monotonic() + 120
    while len(list(staging.glob('*/episode.json'))) < 2 and process.poll() is None:
        assert time.monotonic() < limit_s
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in staging.glob('*/episode.json')}
    assert len(kept) >= 2 and not out.exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert 'episodes were converted before' in done.stderr
    assert len(rows_of(out)) == 240 and check_dataset(out, decode=True) == []
    assert len(records_of(out)) == 6 and not staging.exists()


def test_a_full_disk_keeps_whole_episodes_and_no_dataset(bag, tmp_path, monkeypatch, capsys):
    finish, calls = lerobot_writer.EpisodeWriter.finish, []

    def fill(writer):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, 'No space left on device')
        finish(writer)

    monkeypatch.setattr(lerobot_writer.EpisodeWriter, 'finish', fill)
    out = tmp_path / 'out'
    assert dataset(bag, out) == 1
    assert 'No space left' in capsys.readouterr().err and not out.exists()
    staging = out.with_name('out.staging')
    assert len(list(staging.glob('*/episode.json'))) == 1 and not list(staging.glob('*.part'))
    assert dataset(bag, out) == 0
    assert len(calls) == 4 and len(rows_of(out)) == 14


def test_a_disk_that_is_full_while_episodes_join_is_said(bag, tmp_path, monkeypatch, capsys):
    lerobot_writer.load_lerobot(tmp_path / 'cache')
    from datasets.exceptions import DatasetGenerationError
    import lerobot.datasets.aggregate

    def fill(*_: object, **__: object) -> None:
        try:
            raise OSError(28, 'No space left on device')
        except OSError as error:
            raise DatasetGenerationError('An error occurred') from error

    out = tmp_path / 'out'
    with monkeypatch.context() as patched:
        patched.setattr(lerobot.datasets.aggregate, 'aggregate_datasets', fill)
        assert dataset(bag, out) == 1
    said = capsys.readouterr().err
    assert 'No space left' in said and 'MB are free there now' in said
    assert f'whole episodes are kept in {out}.staging' in said
    assert dataset(bag, out) == 0
    assert '3 episodes were converted before' in capsys.readouterr().err


def test_a_kill_between_the_renames_loses_nothing(bag, tmp_path, monkeypatch):
    out = tmp_path / 'out'
    assert dataset(bag, out) == 0
    staging = out.with_name('out.staging')
    staging.mkdir()
    out.rename(staging / 'previous')
    with Staging(out):
        assert len(rows_of(out)) == 14


def test_a_kill_behind_the_last_rename_is_a_finished_conversion(bag, tmp_path, capsys):
    out = tmp_path / 'out'
    assert dataset(bag, out) == 0
    staging = out.with_name('out.staging')
    staging.mkdir()
    (staging / 'published').touch()
    assert dataset(bag, out) == 0
    assert '0 episodes added, 0 rows; 3 in the dataset before' in capsys.readouterr().out
    assert not staging.exists() and dataset(bag, out) == 1


def test_two_conversions_of_one_dataset_are_refused(bag, tmp_path, capsys):
    with Staging(tmp_path / 'out'):
        assert dataset(bag, tmp_path / 'out') == 1
    assert 'another conversion writes' in capsys.readouterr().err


def test_check_finds_a_lost_frame(bag, tmp_path, capsys):
    out = tmp_path / 'out'
    assert dataset(bag, out) == 0
    file = next((out / 'videos' / FRONT).rglob('file-000.mp4'))
    assert len(list(frame_times(file, decode=True))) == 8
    rewrite_without_last(file)
    assert dataset('--check', out) == 1
    assert f'{file} has 7 frames for 8 rows' in capsys.readouterr().out


def rewrite_without_last(path: Path) -> None:
    import av

    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format='rgb24') for frame in container.decode(video=0)]
    with av.open(str(path), 'w') as container:
        stream = container.add_stream('h264', 30)
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], 'yuv420p'
        for frame in frames[:-1]:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format='rgb24')))
        container.mux(stream.encode())


def test_bags_without_episodes_and_without_lerobot_say_what_to_do(
    bag, tmp_path, monkeypatch, capsys
):
    empty = EdgeBag(tmp_path / 'empty').close()
    assert dataset(empty, tmp_path / 'out') == 1
    assert 'hold no episode' in capsys.readouterr().err
    assert dataset(bag, tmp_path / 'out', '--robot-name', 'other') == 1
    assert "no episode of 'other'; the bags have ['arm']" in capsys.readouterr().err
    assert dataset(bag, tmp_path / 'out', '--filter', 'slot=z') == 1
    assert 'nothing to convert' in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, 'lerobot.datasets.lerobot_dataset', None)
    assert dataset(bag, tmp_path / 'out') == 1
    assert 'pip install' in capsys.readouterr().err
    assert not list(tmp_path.glob('out*'))


NAMES = tuple(f'episode_{number}' for number in range(7))


@pytest.mark.parametrize('vcodec', ['h264', 'png'])
def test_in_groups_of_two_as_at_once(tmp_path, monkeypatch, vcodec):
    bag = bag_of(tmp_path / 'bag', NAMES)
    outs = {size: tmp_path / f'by_{size}' for size in (2, 100)}
    for size, out in outs.items():
        monkeypatch.setattr(lerobot_writer, 'GROUP_SIZE', size)
        assert dataset(bag, out, '--check', '--vcodec', vcodec) == 0
    assert rows_of(outs[2]) == rows_of(outs[100])
    for out in outs.values():
        assert tuple(ids_of(out)) == NAMES
    # and more behind them
    more = bag_of(tmp_path / 'more', tuple(f'{name}_more' for name in NAMES))
    monkeypatch.setattr(lerobot_writer, 'GROUP_SIZE', 2)
    assert dataset(more, outs[2], '--append', '--check', '--vcodec', vcodec) == 0
    rows = rows_of(outs[2])
    assert [row['index'] for row in rows] == list(range(len(rows)))
    assert len(ids_of(outs[2])) == rows[-1]['episode_index'] + 1 == 2 * len(NAMES)

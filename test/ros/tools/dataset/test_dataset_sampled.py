# SPDX-License-Identifier: Apache-2.0
"""Bags of other recorders: rows at the rate of a robot file, and which recording is which."""

from __future__ import annotations

from pathlib import Path
import shutil

import numpy as np
import pytest
from support.tools.datasets import dataset, records_of, rows_of

from benchmarks.recording.example_bag import BEGIN_NS, EdgeBag, ROBOT_FILE
from lerobot_serve.tools.dataset.as_of import utc_text

HOUR_NS = 3600 * 10**9


@pytest.fixture
def robot(tmp_path) -> Path:
    """A robot file with the full names of topics, as of no node."""
    file = tmp_path / 'robot.yaml'
    text = ROBOT_FILE.replace('topic: joint', 'topic: /arm/joint')
    file.write_text(text.replace('topic: camera', 'topic: /arm/camera'))
    return file


def recorded(folder: Path, *, later_ns: int = 0, steps: int = 12) -> Path:
    made = EdgeBag(folder)
    made.clock_ns += later_ns
    made.episode('ignored', steps)
    return made.close()


def test_bags_of_other_recorders_are_sampled(tmp_path, robot):
    out = tmp_path / 'out'
    bag = recorded(tmp_path / 'old')
    assert dataset(bag, out, '--robot', robot, '--task', 'reach', '--check') == 0
    rows = rows_of(out)
    assert len(rows) >= 11 and 'next.success' not in rows[0]
    assert 'sampled' in (out / 'meta/lerobot_serve/source.json').read_text()
    (record,) = records_of(out)
    assert (record['task'], record['bag']) == ('reach', 'old')
    assert record['episode_id'].startswith(utc_text(BEGIN_NS)[:13])


def test_two_recordings_may_be_called_alike(tmp_path, robot):
    """As `run_00` of each day; a copy under another name is the same recording."""
    out = tmp_path / 'out'
    monday = recorded(tmp_path / 'monday/run_00')
    tuesday = recorded(tmp_path / 'tuesday/run_00', later_ns=24 * HOUR_NS)
    copy = shutil.copytree(monday, tmp_path / 'copy')
    assert dataset(monday, out, '--robot', robot) == 0
    assert dataset(tuesday, copy, out, '--robot', robot, '--append', '--check') == 0
    records = records_of(out)
    assert [each['bag'] for each in records] == ['run_00', 'run_00']
    assert len({each['episode_id'] for each in records}) == 2


def test_a_bag_that_has_grown_is_refused_with_its_name(tmp_path, robot, capsys):
    out = tmp_path / 'out'
    assert dataset(recorded(tmp_path / 'a/run'), out, '--robot', robot) == 0
    grown = recorded(tmp_path / 'b/run', steps=20)
    assert dataset(grown, out, '--robot', robot, '--append') == 1
    assert 'in run is in the dataset with other rows' in capsys.readouterr().err


def test_a_joint_that_the_bag_lacks_is_named_at_once(tmp_path, robot, capsys):
    robot.write_text(robot.read_text().replace('joints: [', 'joints: [wrist2, '))
    assert dataset(recorded(tmp_path / 'old', steps=40), tmp_path / 'out', '--robot', robot) == 1
    err = capsys.readouterr().err
    assert 'the first 20 messages of /arm/joint_states do not fit the robot file: ' in err
    assert 'wrist2' in err
    assert 'too old' not in err
    assert not (tmp_path / 'out').exists()


def test_what_a_dataset_will_lack_is_noted(tmp_path, robot, capsys):
    bag = recorded(tmp_path / 'old')
    assert dataset(bag, tmp_path / 'out', '--robot', robot) == 0
    err = capsys.readouterr().err
    assert 'old has executed actions: without --robot its rows are exactly' in err
    assert 'the episodes have no task' in err
    assert dataset(bag, tmp_path / 'named', '--robot', robot, '--task', 'reach') == 0
    assert 'have no task' not in capsys.readouterr().err


def test_each_note_is_printed_once_however_many_passes_there_are(tmp_path, robot, capsys):
    """Pictures of another size are found while the first pass converts."""

    def change(step):
        if step.number in (4, 5, 9):
            step.frames['front'] = np.zeros((24, 32, 3), np.uint8)
        if 20 < step.number < 100:
            step.frames = {}

    made = EdgeBag(tmp_path / 'old')
    made.episode('ignored', 110, change=change)
    assert dataset(made.close(), tmp_path / 'out', '--robot', robot) == 0
    said = capsys.readouterr().err.splitlines()
    # LeRobot shows bars of its own
    notes = [line for line in said if 'sim_arm' in line or 'cannot be used' in line]
    assert len(notes) == len(set(notes))
    (unusable,) = [line for line in notes if 'cannot be used and count as missing' in line]
    assert unusable.startswith('3 messages')
    assert len(notes) > 1


def test_a_time_is_readable_and_exact():
    assert utc_text(1_700_000_000_000_000_001) == '20231114T221320.000000001Z'
    assert utc_text(0) == '19700101T000000.000000000Z'
    assert utc_text(2**64 - 1).startswith('2554')

# SPDX-License-Identifier: Apache-2.0
"""Robot files and URDFs that are no files, or far too large, and what a mistake shows of them."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
from support.edge.robot_rig import ARM

from lerobot_serve.edge.robot import urdf
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.edge.robot.file_format import (
    ROBOT_BYTES_LIMIT,
    RobotFileError,
    URDF_BYTES_LIMIT,
)


@pytest.mark.parametrize('key', ['urdf', 'robot'])
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path, key):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    for path in (pipe, Path('/dev/zero')):
        with pytest.raises(RobotFileError, match='not a regular file'):
            load(path) if key == 'robot' else urdf.load(path)


def test_a_file_without_an_end_that_is_sensible_is_not_read(tmp_path):
    large = tmp_path / 'large.urdf'
    with large.open('wb') as file:
        file.truncate(URDF_BYTES_LIMIT + 1)
    with pytest.raises(RobotFileError, match='larger than 16384 KiB'):
        urdf.load(large)
    os.truncate(large, ROBOT_BYTES_LIMIT + 1)
    with pytest.raises(RobotFileError, match='larger than 64 KiB'):
        load(large)


@pytest.mark.parametrize('text', ['[', '{a: ', '- ', '? '])
def test_a_file_that_is_nested_deeply_is_refused_where_it_begins_to_be(tmp_path, text):
    file = tmp_path / 'robot.yaml'
    file.write_text(text * 3000)
    with pytest.raises(RobotFileError, match=r'line 1, column \d\d: nested more than 16 deep'):
        load(file)


def test_what_was_given_is_shown_short():
    content = ARM | {'name': 'x' * 100_000}
    with pytest.raises(RobotFileError) as error:
        parse(content, 'robot.yaml')
    assert len(str(error.value)) < 300
    assert '(100002 characters)' in str(error.value)


def test_a_step_is_at_most_the_range():
    content = copy.deepcopy(ARM)
    action = content['actions']['shoulder_pan.pos']
    span = action['max'] - action['min']
    action['max_step'] = span
    assert parse(content, 'robot.yaml').actions[0].max_step == span
    action['max_step'] = 1e6
    with pytest.raises(
        RobotFileError, match=r'max_step must be in .* from min to max, got 1000000'
    ):
        parse(content, 'robot.yaml')


def test_an_interlock_may_be_immediate():
    content = copy.deepcopy(ARM)
    lock = {'state': 'shoulder_pan.pos', 'below': -1.0, 'then': {'shoulder_pan.pos': 0.0}}
    content['actions']['shoulder_pan.pos']['max_acceleration'] = 9.0
    for given, immediate in (({}, False), ({'immediate': True}, True)):
        content['interlocks'] = {'low': lock | given}
        assert parse(content, 'robot.yaml').interlocks[0].immediate is immediate
    content['interlocks'] = {'low': lock | {'immediate': 'yes'}}
    with pytest.raises(RobotFileError, match="immediate must be true or false, got 'yes'"):
        parse(content, 'robot.yaml')
    content['interlocks'] = {'low': lock | {'immediate': True}}
    del content['actions']['shoulder_pan.pos']['max_acceleration']
    with pytest.raises(RobotFileError, match='immediate changes nothing for shoulder_pan'):
        parse(content, 'robot.yaml')

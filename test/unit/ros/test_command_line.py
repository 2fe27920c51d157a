# SPDX-License-Identifier: Apache-2.0
"""The command line of the executables: every word has an effect, or is refused with a hint."""

from __future__ import annotations

import pytest

from lerobot_serve.entry_points import UserError
from lerobot_serve.ros.process.command_line import (
    check_arguments,
    is_help_requested,
    matches_node,
    node_path,
    NodeCommand,
    split_arguments,
)
from lerobot_serve.sim.parameters import SimParameters

COMMAND = NodeCommand('sim_robot', SimParameters)


@pytest.mark.parametrize(
    ('words', 'foreign', 'ros'),
    [
        ([], [], []),
        (['a'], ['a'], []),
        (['--ros-args', '-p', 'a:=1'], [], ['-p', 'a:=1']),
        (['a', '--ros-args', '-p', 'a:=1', '--', 'b'], ['a', 'b'], ['-p', 'a:=1']),
        (['--ros-args', 'x', '--', '--ros-args', 'y'], [], ['x', 'y']),
    ],
)
def test_words_of_ros_and_others(words, foreign, ros):
    assert split_arguments(words) == (foreign, ros)


@pytest.mark.parametrize(
    ('entry', 'path', 'expected'),
    [
        ('/**', '/sim_robot', True),
        ('/**', '/a/b/sim_robot', True),
        ('/*', '/sim_robot', True),
        ('/*', '/a/sim_robot', False),
        ('/*/sim_robot', '/a/sim_robot', True),
        ('/**/sim_robot', '/sim_robot', True),
        ('/**/sim_robot', '/a/b/sim_robot', True),
        ('/**/**/sim_robot', '/sim_robot', True),
        ('sim_robot', '/sim_robot', True),
        ('sim_robot', '/a/sim_robot', False),
        ('/a/sim_robot', '/a/sim_robot', True),
        ('/a/sim_robt', '/a/sim_robot', False),
    ],
)
def test_which_entries_of_a_file_are_for_a_node(entry, path, expected):
    assert matches_node(entry, path) == expected


def test_the_name_of_the_node_follows_its_remappings():
    words = ['-r', '__ns:=/a/b', '-r', 'sim_robot:__node:=other', '-r', 'x:=y']
    assert node_path(COMMAND, words) == '/a/b/other'
    assert node_path(COMMAND, []) == '/sim_robot'


@pytest.mark.parametrize(
    'words',
    [
        [],
        ['--ros-args', '-p', 'seed:=3', '-r', 'a:=b', '--log-level', 'sim_robot:=info'],
        ['--ros-args', '-p', 'sim_robot:seed:=3'],
        ['--ros-args', '-p', '/**:seed:=3'],
    ],
)
def test_what_has_an_effect_passes(words):
    check_arguments(COMMAND, words)


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--seed', '3'], 'did you mean --ros-args -p seed:=3?'),
        (['--seed=3'], '-p seed:=3'),
        (['seed:=3'], '-p seed:=3'),
        (['--rate.hz=3'], '-p rate_hz:=3'),
        (['--zzz'], '--zzz; `sim_robot --help` lists all parameters'),
        (['--ros-args', '-p', 'other:seed:=3'], 'addresses the node other'),
    ],
)
def test_what_has_none_is_refused_with_what_was_meant(words, said):
    with pytest.raises(UserError) as refused:
        check_arguments(COMMAND, words)
    assert said in str(refused.value)


def test_help_is_found_wherever_it_stands():
    assert is_help_requested(['-h'])
    assert is_help_requested(['--ros-args', '-p', 'a:=1', '--', '--help'])
    assert not is_help_requested(['--ros-args'])


@pytest.mark.parametrize('content', ['', '[', '3', 'a: {ros__parameters: {}}'])
def test_only_a_file_with_entries_for_others_alone_is_refused(tmp_path, content):
    file = tmp_path / 'file.yaml'
    file.write_text(content)
    words = ['--ros-args', '--params-file', str(file)]
    if content.startswith('a'):
        with pytest.raises(UserError, match='has no entry for /sim_robot, only for /a'):
            check_arguments(COMMAND, words)
    else:
        check_arguments(COMMAND, words)

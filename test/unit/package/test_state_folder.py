# SPDX-License-Identifier: Apache-2.0
"""Where a node keeps what it has to know when it is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.state_folder import state_folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'ros'))
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    return tmp_path


def test_a_folder_that_is_named_is_made(home):
    wanted = home / 'a' / 'b'
    assert state_folder(str(wanted), '/policy_router') == wanted
    assert wanted.is_dir()
    assert state_folder(str(wanted), '/policy_router') == wanted


def test_without_one_it_is_named_after_the_node_below_ros_home(home, monkeypatch):
    folder = state_folder('', '/policy_router')
    assert folder == home / 'ros' / 'lerobot_serve' / 'policy_router'
    other = state_folder('', '/cell_2/policy_router')
    assert other.parent == folder.parent
    assert other.name.startswith('cell_2_policy_router-')
    monkeypatch.delenv('ROS_HOME')
    assert state_folder('', '/r') == home / 'home' / '.ros' / 'lerobot_serve' / 'r'


def test_two_nodes_never_share_one():
    names = ('/a/policy_router', '/a_policy_router', '/a/policy/router', '/a.policy_router')
    assert len({state_folder('', name) for name in names}) == len(names)


def test_the_home_of_the_user_may_be_meant(home):
    assert state_folder('~/here', '/r') == home / 'home' / 'here'


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        ('{home}/file/below', 'Not a directory'),
        ('{home}/file', 'File exists'),
        ('{home}/' + 'n' * 300, 'too long'),
        ('~nobody_of_that_name/here', 'home directory'),
        ('{home}/a\0b', 'null'),
    ],
)
def test_one_that_cannot_be_made_is_refused_in_one_line(home, given, words):
    (home / 'file').touch()
    with pytest.raises(ParameterError, match=words) as refused:
        state_folder(given.format(home=home), '/policy_router')
    text = str(refused.value)
    assert text.startswith('state_folder ')
    assert 'set a writable folder' in text
    assert '\n' not in text
    assert '\0' not in text

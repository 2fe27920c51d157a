# SPDX-License-Identifier: Apache-2.0
"""The folder of ROS, by its variable or below the user's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lerobot_serve.state_folder import expanded, ros_home


@pytest.mark.parametrize('given', ['/data/ros', ''])
def test_without_the_variable_it_is_below_the_folder_of_the_user(given, monkeypatch):
    monkeypatch.setenv('ROS_HOME', given)
    monkeypatch.setenv('HOME', '/home/kim')
    home = Path(given or '/home/kim/.ros')
    assert ros_home() == home
    assert expanded('$ROS_HOME/traces/a') == home / 'traces/a'
    assert expanded('~/traces') == Path('/home/kim/traces')
    assert expanded('traces') == Path('traces')

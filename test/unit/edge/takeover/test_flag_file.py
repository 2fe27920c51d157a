# SPDX-License-Identifier: Apache-2.0
"""What a restart leaves of a takeover: all of it, and where in doubt a takeover."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import threading

import pytest
from support.edge.controller_rig import arm
from support.waiting import wait_until

from lerobot_serve.edge import flag_file, wiring
from lerobot_serve.edge.control.authority import Intervention
from lerobot_serve.edge.flag_file import FlagFile, PAUSED, TAKEN_OVER
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.intervention import InterventionInput
from lerobot_serve.edge.takeover.person_input import PersonInput
from lerobot_serve.edge.takeover.takeover import Takeover
from lerobot_serve.parameters import build_parameters, ParameterError

DEVICE = InterventionInput('leader', 'std_msgs/Float64MultiArray', 0.2)
ROBOT = replace(arm(), intervention=DEVICE)


def device() -> PersonInput:
    return PersonInput(ROBOT, DEVICE, None, count_dropped=lambda _: None)


def parameters(folder: Path | str) -> EdgeParameters:
    return build_parameters(EdgeParameters, {'state_folder': str(folder)})


def test_a_takeover_survives_and_its_end_does_too(tmp_path):
    assert not Takeover(device(), FlagFile(tmp_path, TAKEN_OVER)).is_taken_over
    assert Takeover(device(), FlagFile(tmp_path, TAKEN_OVER)).begin() == ''
    again = Takeover(device(), FlagFile(tmp_path, TAKEN_OVER))
    assert again.read(0).intervention is Intervention.LOST
    assert again.end() == ''
    assert not Takeover(device(), FlagFile(tmp_path, TAKEN_OVER)).is_taken_over
    # a second hand-back, or one without a takeover
    assert again.end() == ''


@pytest.mark.parametrize('content', [b'', b'\0\xff' * 99, b'no'], ids=['empty', 'bytes', 'text'])
def test_damage_is_a_takeover(tmp_path, content):
    (tmp_path / TAKEN_OVER).write_bytes(content)
    assert Takeover(device(), FlagFile(tmp_path, TAKEN_OVER)).is_taken_over


def test_so_is_a_file_of_another_kind(tmp_path):
    (tmp_path / TAKEN_OVER).symlink_to(tmp_path / 'nowhere')
    assert FlagFile(tmp_path, TAKEN_OVER).exists()


def test_a_device_that_the_robot_file_names_no_more_is_waited_for(tmp_path):
    Takeover(device(), FlagFile(tmp_path, TAKEN_OVER)).begin()
    without = Takeover(None, FlagFile(tmp_path, TAKEN_OVER))
    assert without.read(0)[:2] == (Intervention.LOST, None)
    assert without.lost_reason == 'the robot file names no device'
    without.end()
    assert without.read(0).intervention is Intervention.NONE


def test_a_disk_that_fails_stops_the_policy_all_the_same(tmp_path):
    folder = tmp_path / 'file'
    folder.touch()
    takeover = Takeover(device(), FlagFile(folder, TAKEN_OVER))
    warning = takeover.begin()
    assert takeover.is_taken_over
    assert warning == (
        f'A restart of the edge controller ends it: {folder / TAKEN_OVER} is not written '
        '(File exists)'
    )
    # nothing is there that a restart could find
    assert takeover.end() == ''
    assert not takeover.is_taken_over


def test_a_robot_with_a_device_needs_a_folder_and_others_none(tmp_path):
    wanted = tmp_path / 'a' / 'b'
    wiring.decision_files(parameters(wanted), arm(), '/robot_1/edge_controller')
    assert not wanted.exists()
    wiring.decision_files(parameters(wanted), ROBOT, '/robot_1/edge_controller')
    assert wanted.is_dir()


@pytest.mark.parametrize('robot', [arm(), ROBOT], ids=['without', 'with'])
@pytest.mark.parametrize('given', ['~nobody_of_that_name/x', 'a\0b'])
def test_a_folder_that_is_none_is_refused_in_one_line(given, robot):
    with pytest.raises(ParameterError, match=r'state_folder .*set a writable folder') as refused:
        wiring.decision_files(parameters(given), robot, '/robot_1/edge_controller')
    assert '\n' not in str(refused.value)


def test_a_disk_that_hangs_holds_up_no_operator_and_the_newest_decision_stays(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(flag_file, 'DISK_LIMIT_S', 0.05)
    answers = threading.Event()
    sync = flag_file.sync_folder
    monkeypatch.setattr(flag_file, 'sync_folder', lambda path: answers.wait(60) and sync(path))
    file = FlagFile(tmp_path, PAUSED)
    assert 'the disk has not responded for 0.05 s' in file.create()
    assert 'the disk has not responded for 0.05 s' in file.remove()
    assert 'the disk has not responded for 0.05 s' in file.create()
    answers.set()
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name == 'decision'], 'it is settled'
    )
    assert file.exists()

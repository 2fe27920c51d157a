# SPDX-License-Identifier: Apache-2.0
"""Verbs that are started inside a policy's folder run none of the modules that lie in it."""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import signal
import subprocess

import pytest
from support.paths import REPOSITORY
from support.processes import trap_folder
from support.waiting import wait_until

from lerobot_serve.ros import qos
from lerobot_serve.tools.processes import end_with_parent, executable_path
from lerobot_serve_interfaces.msg import ServerStatus

LIMIT_S = 120.0
END_S = 40.0
pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(params=['onnx', 'torch', 'builtin', 'act'])
def folder(request, tmp_path) -> Path:
    """Return the folder of a policy of each kind that is read from files, full of traps."""
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    found = tmp_path / 'policy'
    if request.param == 'builtin':
        shutil.copytree(REPOSITORY / 'config' / 'policies' / 'reach', found)
    elif request.param == 'act':
        pytest.importorskip('lerobot', reason='LeRobot is not installed')
        from support.policies.tiny_policies import build

        build('act', found)
    else:
        from support.policies import exported_rig as rig

        rig.write_policy(found, rig.as_onnx() if request.param == 'onnx' else rig.exported())
    trap_folder.fill(found, tmp_path / 'sprung')
    return found


def command(*words: str) -> list[str]:
    return end_with_parent([str(executable_path('lerobot-serve')), *words])


def test_a_server_and_the_doctor_of_the_folder_they_are_in(folder, tmp_path, node, request):
    given = {
        'cwd': folder,
        'env': {**os.environ, 'ROS_HOME': str(tmp_path / 'ros')},
        'stdin': subprocess.DEVNULL,
        'stderr': subprocess.STDOUT,
    }
    heard: list[object] = []
    node.create_subscription(ServerStatus, '/policy_server/status', heard.append, qos.STATE)
    log = tmp_path / 'log'
    with log.open('w') as output:
        server = subprocess.Popen(command('serve', '.'), stdout=output, **given)
        try:
            wait_until(
                lambda: heard or server.poll() is not None, 'a status of the server', LIMIT_S
            )
            if request.node.callspec.params['folder'] == 'act':
                # it has no fps of its training, so it is refused once it is read
                assert server.wait(LIMIT_S) == 1
                assert 'trained_fps must be set' in log.read_text()
            else:
                assert heard, log.read_text()
                server.send_signal(signal.SIGINT)
                assert server.wait(END_S) == 0, log.read_text()
        finally:
            server.kill()
            server.wait()
        subprocess.run(command('doctor', '--wait-s', '0.2', '.'), stdout=output, **given)
    assert trap_folder.sprung(tmp_path / 'sprung') == [], log.read_text()

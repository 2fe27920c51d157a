# SPDX-License-Identifier: Apache-2.0
"""What a live server traced with all its images is asked again, also after it was killed."""

from __future__ import annotations

import json

from lerobot_serve.contract.schema import Flag
from lerobot_serve.tools.cli.main import main

KIND = 'recurrent'
SHAPE, OTHER = 'joints=6,chunk=30,cameras=,fps=30', 'joints=6,chunk=31,cameras=,fps=30'
REQUESTS = 8


def test_a_server_that_was_killed_is_asked_again(rig, tmp_path, capsys):
    folder = tmp_path / 'trace'
    process = rig.start(
        policy_kind=KIND, policy_path=SHAPE, trace_folder=folder, trace_images='full'
    )
    robot = rig.client()
    for number in range(REQUESTS):
        episode, at = divmod(number, 4)
        robot.round_trip(episode=episode, flags=Flag.NONE if at else Flag.EPISODE_START)
    rig.wait(
        lambda: sum(file.read_text().count('"replay":') for file in folder.iterdir()) == REQUESTS,
        'all requests are in the trace',
    )
    process.kill()
    same = ['replay', str(folder), '--kind', KIND, '--json']
    assert main([*same, '--policy', SHAPE, '--fail-on', 'different']) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told['identical'], told['requests']) == (REQUESTS, REQUESTS)
    assert main([*same, '--policy', OTHER]) == 3

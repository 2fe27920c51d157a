"""A recording of a LeRobot policy is asked again without saying what its files do not hold."""

from __future__ import annotations

import json

import pytest

pytest.importorskip('lerobot', reason='LeRobot is not installed (TORCH=none)')

from lerobot_rig import folder_of, NAMES
from replay_rig import answered, record, request

from lerobot_serve.cli.main import main


def test_names_and_rate_are_not_asked_for(tmp_path, capsys):
    said = {'state_names': NAMES, 'action_names': NAMES, 'trained_fps': 30.0, 'cpu_threads': 1}
    folder = str(folder_of('act', cameras=()))
    requests = [request(seq, joints=6) for seq in (1, 2)]
    bag = record(tmp_path, answered(requests, 'lerobot', folder, **said))
    words = ['replay', str(bag), '--kind', 'lerobot', '--policy', folder, '--json']
    status = main([*words, '--parameter', 'cpu_threads=1'])
    found = json.loads(capsys.readouterr().out)
    assert status == 0, found
    assert str(found).count('identical')

# SPDX-License-Identifier: Apache-2.0
"""
What each fleet file gives: its processes in order, or a refusal. Most of the files are in
test/golden/fleet_files.txt, each before its outcome.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import REPOSITORY

from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.plan import fleet_plan
from lerobot_serve.tools.fleet.shipped import config_folder

pytestmark = pytest.mark.golden
BOMB = 'a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n' + ''.join(
    f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 10)}]\n' for n in range(1, 12)
)
SHIPPED = sorted((REPOSITORY / 'config' / 'fleets').glob('*.yaml'))
HOSTILE = {
    'bomb': BOMB,
    'brackets': 'servers: ' + '[' * 100_000,
    'braces': 'servers: ' + '{a: ' * 30 + '1' + '}' * 30,
    'large': 'x' * 5_000_000,
    'empty': '',
    'zero': '\0',
}


def outcome(text: str) -> str:
    """Return the processes of a file, or its refusal."""
    try:
        planned = fleet_plan(text, 'fleet.yaml', Path('/nowhere'))
    except UserError as refused:
        assert len(str(refused)) < 20_000
        return f'refused: {refused}\n'
    lines = [
        f'{each.stage.name} {each.name}: {each.node} {each.executable} {" ".join(each.arguments)}'
        for each in planned
    ]
    return '\n'.join(lines).replace(str(config_folder()), 'CONFIG') + '\n'


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv('ROS_HOME', '/data/ros')
    monkeypatch.setenv('HOME', '/home/kim')


def test_a_fleet_file_gives_what_was_agreed(golden):
    golden.holds_outcomes('fleet_files.txt', outcome)


def test_shipped_and_hostile_files_give_what_was_agreed(golden):
    given = HOSTILE | {path.name: path.read_text() for path in SHIPPED}
    found = [f'{name}\n==> {outcome(text)}' for name, text in given.items()]
    golden.holds('fleet_files_shipped.txt', '\n'.join(found))

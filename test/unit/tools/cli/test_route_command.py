# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve route`: says of any id where a router would place it."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.router.placement_rig import place

from lerobot_serve.errors import UserError
from lerobot_serve.router.placement.placement_table import PlacementTable
from lerobot_serve.tools.cli.verbs import route

EP_42 = {'key': 'ep_42', 'bucket': 29, 'slot': 'a', 'split_percent': 30}
EP_XYZ = {'key': 'ep_xyz', 'bucket': 77, 'slot': 'b', 'split_percent': 30}


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    route.add_arguments(parser)
    return route.main(parser.parse_args(arguments))


@pytest.fixture
def typed(monkeypatch):
    """Give the standard input."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(content)))

    return give


def test_people_get_a_table(capsys):
    assert run('--split', '30', 'ep_42', 'ep_xyz') == 0
    assert capsys.readouterr().out.splitlines() == [
        'slot  bucket  episode',
        'a         29  ep_42',
        'b         77  ep_xyz',
    ]


def test_programs_get_json(capsys):
    assert run('--json', '--split', '30', 'ep_42', 'ep_xyz') == 0
    assert json.loads(capsys.readouterr().out)['episodes'] == [EP_42, EP_XYZ]


@pytest.mark.parametrize('content', [b'ep_42\nep_xyz\n', b'ep_42\r\n\r\n\nep_xyz'])
def test_ids_can_come_from_standard_input(typed, capsys, content):
    typed(content)
    run('--split', '30', '--json', '-')
    assert json.loads(capsys.readouterr().out)['episodes'] == [EP_42, EP_XYZ]


def test_no_ids_are_no_mistake(typed, capsys):
    typed(b'')
    assert run('--split', '30', '--json', '-') == 0
    assert json.loads(capsys.readouterr().out)['episodes'] == []


def test_beside_others_a_dash_is_an_id(typed, capsys):
    typed(b'ep_xyz\n')
    run('--split', '30', '--json', '-', 'ep_42')
    assert [found['key'] for found in json.loads(capsys.readouterr().out)['episodes']] == [
        '-',
        'ep_42',
    ]


def test_spaces_belong_to_an_id(typed, capsys):
    typed(b' ep_42 \n')
    run('--split', '30', '--json', '-')
    assert json.loads(capsys.readouterr().out)['episodes'][0]['key'] == ' ep_42 '


@pytest.mark.parametrize('split', ['-1', '101', '1000'])
def test_a_split_that_cannot_be_is_refused(split):
    with pytest.raises(UserError, match=rf'--split must be in \[0, 100\], got {split}'):
        run('--split', split, 'ep_42')


@pytest.mark.parametrize('arguments', [('ep_42',), ('--split', '30'), ('--split', 'half', 'ep')])
def test_an_incomplete_command_line_is_refused(arguments):
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2


def test_an_id_that_no_robot_could_send_is_refused(typed):
    with pytest.raises(UserError, match='must not be empty'):
        run('--split', '30', '')
    # as Python gives an argument that is not UTF-8
    with pytest.raises(UserError, match='UTF-8'):
        run('--split', '30', 'ep_\udcff')
    typed(b'ep_42\n\xff\n')
    with pytest.raises(UserError, match='UTF-8'):
        run('--split', '30', '-')


def test_what_would_disturb_a_terminal_is_escaped(capsys):
    run('--split', '30', 'a\x1b[31m\nb')
    assert capsys.readouterr().out.splitlines()[1].endswith(r"'a\x1b[31m\nb'")


@given(st.text(st.characters(exclude_categories=['Cs']), min_size=1), st.integers(0, 100))
def test_it_says_what_a_router_does(episode_id, split_percent):
    placement = place(PlacementTable(1), episode_id, '', split_percent)
    found = route.placement(episode_id, split_percent)
    assert found == {
        'key': placement.routing_key,
        'bucket': placement.bucket,
        'slot': placement.slot,
        'split_percent': placement.split_percent,
    }


def test_it_needs_no_ros():
    code = (
        'import sys\n'
        'from lerobot_serve.tools.cli.main import main\n'
        'assert main(["route", "--split", "80", "ep"]) == 0\n'
        'sys.exit(any(name in sys.modules for name in ("rclpy", "torch", "numpy")))'
    )
    assert subprocess.run([sys.executable, '-c', code], timeout=60).returncode == 0

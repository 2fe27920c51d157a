# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve link` beside a real server and robot, and where nobody is reached."""

from __future__ import annotations

import json
import socket

import pytest
from support.golden import form_of

from lerobot_serve.tools.cli.main import main

SECONDS = ['--seconds', '2']
pytestmark = pytest.mark.long


@pytest.fixture
def endpoint() -> str:
    """A free TCP endpoint."""
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return f'tcp/127.0.0.1:{found.getsockname()[1]}'


@pytest.mark.slow
@pytest.mark.golden
def test_it_shows_the_server_its_robot_and_what_they_send(edge_rig, endpoint, capsys, golden):
    edge_rig.start_server(zenoh_listen=f"['{endpoint}']")
    edge_rig.start(link='zenoh', zenoh_connect=f"['{endpoint}']")
    edge_rig.wait(lambda: len(edge_rig.seen.played) > 30, 'thirty actions of the policy')
    assert main(['link', '--json', '--connect', endpoint, *SECONDS]) == 0
    found = json.loads(capsys.readouterr().out)
    golden.holds('json_of_nodes/link.txt', form_of(found))
    assert found['reached'] == [endpoint] and not found['failure']
    server, robot = found['participants']
    assert (server['name'], server['role'], server['has_token']) == (
        'policy_server',
        'server',
        True,
    )
    assert server['policy'].startswith('null')
    trips = server['round_trip_ms']
    assert trips['n'] > 5 and 0 < trips['p50'] <= trips['p99'] < 1000
    # the token of a robot that is connected to the server, not to this process
    assert (robot['name'], robot['role'], robot['has_token']) == ('robot_1', 'robot', True)
    rates = {rate['key'].rpartition('/')[2]: rate for rate in found['keys']}
    for name in ('observation', 'action_chunk'):
        assert rates[name]['messages_per_s'] > 0.4 and rates[name]['kb_per_s'] > 0
    assert main(['link', '--connect', endpoint, '--site', 'hall', '--seconds', '0.5']) == 1
    error = capsys.readouterr().err
    assert 'no server of the site hall; it has the site default: give it as --site' in error


@pytest.mark.slow
def test_it_names_two_servers_of_one_name(edge_rig, endpoint, capsys):
    for _ in range(2):
        edge_rig.start_server(zenoh_connect=[endpoint])
    assert main(['link', '--json', '--listen', endpoint, '--seconds', '8']) == 0
    (problem,) = json.loads(capsys.readouterr().out)['problems']
    assert '2 servers have the name policy_server in' in problem and 'stop all but one' in problem


@pytest.mark.slow
def test_it_waits_for_a_server_that_connects(edge_rig, endpoint, capsys):
    edge_rig.start_server(zenoh_connect=f"['{endpoint}']")
    assert main(['link', '--listen', endpoint, '--seconds', '10']) == 0
    assert 'policy_server' in capsys.readouterr().out


def test_where_nothing_listens_it_says_so(endpoint, capsys):
    assert main(['link', '--connect', endpoint]) == 1
    output = capsys.readouterr()
    assert output.err == (
        f'lerobot-serve link: nothing listens on {endpoint}; start the server or router there '
        'with zenoh_listen, or correct --connect\n'
    )
    assert not output.out


def test_another_kind_of_server_is_told_from_one_that_is_not_there(capsys):
    with socket.create_server(('127.0.0.1', 0)) as other:
        endpoint = f'tcp/127.0.0.1:{other.getsockname()[1]}'
        assert main(['link', '--connect', endpoint]) == 1
    assert f'{endpoint} opens no Zenoh session' in capsys.readouterr().err


@pytest.mark.parametrize('seconds', ['0', '-1', 'nan', 'x', '1e9'])
def test_a_wrong_duration_is_refused(seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        main(['link', f'--seconds={seconds}'])
    assert ended.value.code == 2
    assert 'must be in (0, 3600] s' in capsys.readouterr().err

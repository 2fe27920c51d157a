# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve up` for real: robots that are driven, a server that is killed, Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
import pty
import re
import signal
import subprocess
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from support.processes.alive import is_alive
from support.waiting import wait_until

from lerobot_serve.ros import qos
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.processes import end_with_parent, executable_path
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

START_S, END_S = 90.0, 90.0
NULL = 'null:joints=6,chunk=30,cameras=,fps=30'
FLEET = """
servers:
  prod: {{policy: '{policy}', replicas: 2}}
router:
  open_session_timeout_s: 5.0
robots:
  left: {{simulated: true, task: reach the target}}
"""


WITH_DASHBOARD = """
servers:
  prod: {{policy: '{policy}'}}
robots:
  left: {{simulated: true, task: reach the target, trace_folder: traces}}
dashboard:
  port: 0
"""
ADDRESS = re.compile(r'dashboard \| (http://127\.0\.0\.1:\d+/)#token=(\S+)')


class UpOnTerminal:
    """One `lerobot-serve up` in a terminal of its own."""

    def __init__(self, folder: Path, fleet: str) -> None:
        self._terminal, own = pty.openpty()
        os.set_blocking(self._terminal, False)
        self._text = b''
        self._process = subprocess.Popen(
            end_with_parent([str(executable_path('lerobot-serve')), 'up', fleet]),
            stdin=subprocess.DEVNULL,
            stdout=own,
            stderr=own,
            env={**os.environ, 'ROS_HOME': str(folder / 'ros'), 'NO_COLOR': '1'},
            cwd=folder,
        )
        os.close(own)

    @property
    def address(self) -> tuple[str, str] | None:
        """The address of the page and the token, as soon as they are printed."""
        with contextlib.suppress(OSError):
            while piece := os.read(self._terminal, 1 << 16):
                self._text += piece
        text = re.sub(r' +\| ', ' | ', self._text.decode(errors='replace'))
        found = ADDRESS.search(text)
        return (found[1], found[2]) if found else None

    def close(self) -> None:
        # its children end with it
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def ask_for_pause(address: str, token: str) -> tuple[int, bool]:
    """Return the status of a command for a robot that is not there, and whether it says so."""
    request = Request(
        f'{address}api/commands',
        data=json.dumps({'verb': 'robot pause', 'target': '/nowhere/edge_controller'}).encode(),
        headers={
            'Content-Type': 'application/json',
            'Origin': address.rstrip('/'),
            'Authorization': f'Bearer {token}',
        },
    )
    with pytest.raises(HTTPError) as refused:
        urlopen(request, timeout=10.0)
    with refused.value as reply:
        return reply.code, "no robot '/nowhere/edge_controller'" in reply.read().decode()


class Up:
    """One `lerobot-serve up`, with its output in a file."""

    def __init__(self, folder: Path, fleet: str) -> None:
        self._log = folder / 'up.log'
        environment = {**os.environ, 'ROS_HOME': str(folder / 'ros')}
        with self._log.open('w') as log:
            self.process = subprocess.Popen(
                end_with_parent([str(executable_path('lerobot-serve')), 'up', fleet]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
            )

    @property
    def lines(self) -> list[str]:
        """The lines, without the names of the processes aligned."""
        return re.sub(r' +\| ', ' | ', self._log.read_text(errors='replace')).splitlines()

    def serving(self) -> int:
        """Return how many servers have said that they serve."""
        return sum(': serving reach' in line for line in self.lines)

    def children(self) -> dict[int, str]:
        """Return the running children with their executables."""
        found = {}
        for folder in Path('/proc').glob('[0-9]*'):
            try:
                state, parent = (folder / 'stat').read_text().rpartition(')')[2].split()[:2]
                words = (folder / 'cmdline').read_text().split('\0')
            except OSError:
                continue
            if state != 'Z' and int(parent) == self.process.pid:
                names = [Path(word).name for word in words[:4]]
                found[int(folder.name)] = next((n for n in names if n in EXECUTABLES), '')
        return found


EXECUTABLES = ('policy_server', 'policy_router', 'sim_robot', 'edge_controller')


@pytest.fixture
def up(tmp_path):
    started: list[Up] = []

    def start(fleet: str) -> Up:
        started.append(Up(tmp_path, fleet))
        return started[-1]

    yield start
    for each in started:
        # its children end with it
        each.process.kill()
        each.process.wait()


def fleet_file(folder: Path, policy: str) -> str:
    (folder / 'fleet.yaml').write_text(FLEET.format(policy=policy))
    return 'fleet.yaml'


@pytest.mark.slow
def test_robots_are_driven_a_killed_server_comes_back_and_ctrl_c_ends_all(up, tmp_path, node):
    pytest.importorskip('torch', reason='the shipped policy runs on torch')
    heard: list[EdgeState] = []
    node.create_subscription(EdgeState, '/left/edge_controller/state', heard.append, qos.STATE)
    started = up(fleet_file(tmp_path, 'reach'))
    wait_until(lambda: heard and heard[-1].state == EdgeState.STREAMING, 'it streams', START_S)
    # a robot streams with the first of the two servers that serves
    wait_until(lambda: started.serving() == 2, 'both servers serve', START_S)
    children = started.children()
    assert sorted(children.values()) == sorted([*EXECUTABLES, 'policy_server'])
    victim = next(pid for pid, name in children.items() if name == 'policy_server')
    os.kill(victim, signal.SIGKILL)
    wait_until(
        lambda: any('ended with signal SIGKILL; it is restarted' in x for x in started.lines),
        'its end is noted',
    )
    wait_until(lambda: started.serving() == 3, 'a third server serves', START_S)
    children = started.children()
    assert victim not in children and len(children) == 5
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(END_S) == 0, started.lines
    ends = [line for line in started.lines if line.startswith('up | ending')]
    assert ends == [
        'up | ending left',
        'up | ending left.sim',
        'up | ending router',
        'up | ending prod_1, prod_2',
    ]
    assert not any('Traceback' in line or 'is killed' in line for line in started.lines)
    assert not any(is_alive(pid) for pid in children)


def test_what_it_started_ends_with_it(up, tmp_path):
    started = up(fleet_file(tmp_path, NULL))
    wait_until(lambda: len(started.children()) == 5, 'all are started', START_S)
    # the executables themselves, not setpriv before them
    wait_until(lambda: all(started.children().values()), 'all are executables', START_S)
    children = started.children()
    started.process.kill()
    started.process.wait()
    for pid in children:
        wait_until(lambda pid=pid: not is_alive(pid), f'process {pid} outlives it')


@pytest.mark.slow
def test_a_dashboard_of_the_fleet_prints_its_token_on_a_terminal(tmp_path):
    (tmp_path / 'fleet.yaml').write_text(WITH_DASHBOARD.format(policy=NULL))
    started = UpOnTerminal(tmp_path, 'fleet.yaml')
    try:
        wait_until(lambda: started.address, 'the dashboard prints its address', START_S)
        address, token = started.address
        with urlopen(f'{address}healthz', timeout=10.0) as reply:
            assert reply.status == 200
        assert ask_for_pause(address, token) == (409, True)
        assert ask_for_pause(address, 'x' * len(token))[0] == 401
        # of the robots, which had written none yet
        assert (tmp_path / 'traces').is_dir()
    finally:
        started.close()


@pytest.mark.slow
def test_a_mistake_of_the_user_ends_it_with_status_1(up, tmp_path):
    (tmp_path / 'fleet.yaml').write_text("servers: {prod: {policy: 'null:joints=x'}}")
    started = up('fleet.yaml')
    assert started.process.wait(END_S) == 1
    errors = [line for line in started.lines if line.startswith('prod | error: ')]
    assert len(errors) == 3 and len(set(errors)) == 1
    assert 'up | the fleet cannot run without its servers; ending' in started.lines


def test_a_key_that_is_unknown_starts_nothing(up, tmp_path):
    (tmp_path / 'fleet.yaml').write_text('servers:\n  prod:\n    polcy: reach\n')
    started = up('fleet.yaml')
    assert started.process.wait(END_S) == 1
    assert started.lines == [
        "lerobot-serve up: fleet.yaml:3: servers.prod: unknown field 'polcy'; did you mean policy?"
    ]


@pytest.mark.slow
def test_the_shipped_fleet_drives_two_robots(up, node):
    pytest.importorskip('torch', reason='the shipped policy runs on torch')
    assert shared_file('config/fleets/two_robots.yaml').is_file()
    heard: dict[str, list[ExecutedAction]] = {'robot_1': [], 'robot_2': []}
    for name, messages in heard.items():
        topic = f'/{name}/edge_controller/executed_action'
        node.create_subscription(ExecutedAction, topic, messages.append, qos.EXECUTED_ACTION)
    started = up('two_robots')
    wait_until(lambda: all(heard.values()), 'both robots execute actions', START_S)
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(END_S) == 0, started.lines

# SPDX-License-Identifier: Apache-2.0
"""
Walks docs/several_machines.md: its commands on three machines, each a network namespace with a ROS
domain of its own, so that nothing but Zenoh joins them; then a bad link, and one that is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import json
from pathlib import Path
import re
import signal
import subprocess
import sys

import pytest
from support.docs.docs_rig import BLOCK, Command, of
from support.network.edge_watch import __name__ as EDGE_WATCH
from support.network.machines import CUT, line_of, Machines, NetworkUnavailable, running_machines
from support.network.watched_edge import WatchedEdge
from support.paths import module_environment, REPOSITORY
from support.waiting import wait_until

from benchmarks.network_emulation.pipe import Conditions
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.diagnosis.diagnose import diagnose
from lerobot_serve.tools.diagnosis.report import diagnosis_report
from lerobot_serve.tools.processes import executable_path

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / 'docs' / 'several_machines.md'
SECTION = re.compile(r'^### The (\w+), ([\d.]+)$(.*?)(?=^##)', re.MULTILINE | re.DOTALL)
EDGE = '/robot_1/edge_controller'
LIMIT_S = 60.0
# both are a link that is cut, on the way there or back
LOST = ('request_lost', 'reply_lost')
# a robot on a radio, far away
FAR = Conditions(rate_mbit_s=20, delay_ms=25, loss_percent=1, queue_ms=200)


@dataclass(frozen=True)
class MachineOfPage:
    """One machine of the page, with its commands."""

    name: str
    address: str
    commands: tuple[Command, ...]

    def starting(self, *first: str) -> list[tuple[str, ...]]:
        """Return the words of the commands that start like this."""
        return [each.words for each in self.commands if each.words[: len(first)] == first]


def machines_of_page() -> list[MachineOfPage]:
    found = []
    for name, address, text in SECTION.findall(PAGE.read_text()):
        commands = tuple(
            command for _, block in BLOCK.findall(text) for command in of(PAGE.name, block)
        )
        found.append(MachineOfPage(name, address, commands))
    return found


MACHINES = machines_of_page()
ROBOT = next(machine for machine in MACHINES if machine.name == 'robot')


def executable(words: tuple[str, ...]) -> list[str]:
    """Return the command that `ros2 run lerobot_serve NODE ...` runs."""
    share = str(shared_file('config').parent)
    return [
        str(executable_path(words[3])),
        *(word.replace('SHARE', share) for word in words[4:]),
    ]


@pytest.fixture(autouse=True)
def modules(monkeypatch) -> None:
    """Children find the modules of the tests."""
    monkeypatch.setenv('PYTHONPATH', module_environment()['PYTHONPATH'])


@pytest.fixture
def machines(tmp_path) -> Iterator[Machines]:
    """The machines of the page, with nothing on them."""
    try:
        with running_machines({m.name: m.address for m in MACHINES}, tmp_path) as made:
            yield made
    except NetworkUnavailable as reason:
        pytest.skip(str(reason))
    finally:
        for log in sorted(tmp_path.glob('*.log')):
            print(f'--- {log.name}\n{log.read_text()[-3000:]}')


@pytest.fixture
def edge(machines, tmp_path) -> WatchedEdge:
    """Everything of the page is started; the edge controller is watched."""
    for machine in MACHINES:
        for words in machine.starting('ros2', 'run', 'lerobot_serve'):
            trace = ['-p', f'trace_folder:={tmp_path / "traces" / words[3]}']
            has_trace = words[3] != 'sim_robot'
            machines.start(words[3], machine.name, [*executable(words), *trace * has_trace])
    watch = [sys.executable, '-m', EDGE_WATCH, EDGE]
    return WatchedEdge(machines.open('edge_watch', ROBOT.name, watch))


def test_the_page_has_three_machines_that_only_zenoh_joins(machines):
    nodes = {m.name: [w[3] for w in m.starting('ros2', 'run', 'lerobot_serve')] for m in MACHINES}
    assert nodes == {
        'server': ['policy_server'],
        'router': ['policy_router'],
        'robot': ['sim_robot', 'edge_controller'],
    }
    environments = [machines.environment(name) for name in nodes]
    assert len({each['ROS_DOMAIN_ID'] for each in environments}) == len(nodes)


def test_the_robot_is_driven_and_survives_its_link(machines, edge, tmp_path):
    driven = edge.wait_until_driven()
    assert driven['server'] == '/policy_router'
    (link,) = ROBOT.starting('lerobot-serve', 'link')
    seen = machines.run(ROBOT.name, [*link, '--json'])
    assert seen.returncode == 0, seen.stderr
    found = json.loads(seen.stdout)
    roles = {(each['client_of'], each['role']) for each in found['participants']}
    assert {('', 'router'), ('policy_router', 'robot')} <= roles

    machines.set_link(ROBOT.name, FAR)
    far = edge.wait_until_driven()
    assert far['network_ms'] > 2 * FAR.delay_ms

    machines.set_link(ROBOT.name, CUT)
    edge.wait_until_fallen_back()
    cut = machines.run(ROBOT.name, [*link])
    assert cut.returncode == 1 and 'does not answer' in cut.stderr
    up, _ = machines.set_link(ROBOT.name)
    assert up['lost'] > 0
    edge.wait_until_driven()
    check_named(machines, tmp_path / 'traces')


def test_the_router_survives_the_link_of_its_server(machines, edge, tmp_path):
    edge.wait_until_driven()
    machines.set_link('server', CUT)
    edge.wait_until_fallen_back()
    machines.set_link('server')
    edge.wait_until_driven()
    check_named(machines, tmp_path / 'traces')


def check_named(machines: Machines, traces: Path) -> None:
    """Check that `diagnose` names the lost link first for the longest stall."""
    for name in ('edge_controller', 'policy_router', 'policy_server'):
        machines.processes[name].send_signal(signal.SIGINT)
        assert machines.processes[name].wait(LIMIT_S) == 0
    found = diagnose([traces], 'robot_1')
    print(diagnosis_report(found).as_text())
    assert found.causes[0].rule.name in LOST


def test_the_machines_end_with_the_process_that_made_them(tmp_path):
    """Also when it is killed: a robot must not be driven by what is left of a test."""
    code = (
        'import sys, time\nfrom pathlib import Path\n'
        'from support.network.machines import line_of, Machines, NetworkUnavailable\n'
        'try:\n    machines = Machines({"robot": "192.168.1.30"}, Path(sys.argv[1]))\n'
        'except NetworkUnavailable as reason:\n    sys.exit(print("unavailable", reason))\n'
        'sleep = ["sh", "-c", "echo $$; exec sleep 600"]\n'
        'sleeper = machines.open("sleeper", "robot", sleep)\n'
        'print(machines._switch.pid, line_of(sleeper), flush=True)\ntime.sleep(600)\n'
    )
    parent = subprocess.Popen(
        [sys.executable, '-c', code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        line = line_of(parent)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    if line.startswith('unavailable'):
        pytest.skip(line)
    pids = [int(pid) for pid in line.split()]
    wait_until(lambda: not any(map(is_running, pids)), 'switch and sleeper end', LIMIT_S)


def is_running(pid: int) -> bool:
    """Return whether a process runs; one of which only the exit status is left does not."""
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False

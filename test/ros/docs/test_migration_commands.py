# SPDX-License-Identifier: Apache-2.0
"""docs/migrate_from_lerobot_async.md without a robot: its files and commands, word for word."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
import os
from pathlib import Path
import re
import shlex
import signal
import subprocess
import sys

import pytest
from support.gateway.sim_plugin import installed_plugin
from support.network.ports import free_port
from support.paths import module_environment, REPOSITORY
from support.waiting import wait_until
import yaml

from lerobot_serve.tools.processes import end_with_parent, executable_path

pytestmark = pytest.mark.slow
pytest.importorskip('torch', reason='the shipped policies run on torch')
pytest.importorskip('lerobot')
PAGE = (REPOSITORY / 'docs' / 'migrate_from_lerobot_async.md').read_text()
FLEET, ROLLOUT, ROBOTS = 'fleet.yaml', 'rollout.yaml', 'robots.yaml'
SHOWN_EPISODE = 'gateway/lerobot/127.0.0.1:48202-01709cd6-0001'
CLIENT = 'python3 -m lerobot.async_inference.robot_client'
START_S, STEP_S = 120.0, 120.0


BLOCKS = re.findall(r'^```(\w*)\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE)


def file_of(name: str) -> str:
    """Return the YAML that the page shows before `lerobot-serve up NAME` for the first time."""
    at = next(i for i, (_, text) in enumerate(BLOCKS) if text == f'lerobot-serve up {name}\n')
    return next(text for kind, text in reversed(BLOCKS[:at]) if kind == 'yaml')


def commands() -> list[str]:
    """Return the commands of the page, lines that go on joined."""
    text = '\n'.join(text for kind, text in BLOCKS if not kind)
    return text.replace('\\\n', '').splitlines()


def command(begin: str, part: str = '') -> str:
    """Return the first command of the page that begins so and has a part."""
    return next(line for line in commands() if line.startswith(begin) and part in line)


class Walk:
    """A person with some terminals, a LeRobot environment and a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.door, self.metrics = free_port(), free_port()
        programs = str(Path(executable_path('lerobot-serve')).parent)
        path = os.pathsep.join([programs, os.environ['PATH']])
        self._environment = {**module_environment(), 'ROS_HOME': str(folder / 'ros'), 'PATH': path}
        self._environment |= {'HOME': str(folder), 'HF_HOME': str(folder / 'huggingface')}
        self._lerobot = dict(self._environment)
        found = [str(installed_plugin(folder / 'plugin')), self._lerobot['PYTHONPATH']]
        self._lerobot['PYTHONPATH'] = os.pathsep.join(found)
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self, name: str, words: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f'{name}.out').open('wb') as log:
            self._started[name] = subprocess.Popen(
                end_with_parent(words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
            )

    def up(self, name: str) -> None:
        """Write a file of the page, with free ports, and start it."""
        fleet = yaml.safe_load(file_of(name))
        if gateway := fleet.get('gateway'):
            gateway['lerobot'] = gateway.get('lerobot', {}) | {'port': self.door}
            gateway['metrics_port'] = self.metrics
        (self.folder / name).write_text(yaml.safe_dump(fleet))
        _, *words = shlex.split(command('lerobot-serve up', name))
        self._start(name, [str(executable_path('lerobot-serve')), *words], self._environment)

    def client(self, name: str, line: str) -> None:
        """Start LeRobot's client with the words of the page, at the free port."""
        words = shlex.split(line.replace('127.0.0.1:8702', f'127.0.0.1:{self.door}'))
        assert words[:2] == ['python3', '-m']
        self._start(name, [sys.executable, *words[1:]], self._lerobot)

    def log(self, name: str) -> str:
        return (self.folder / f'{name}.out').read_text(errors='replace')

    def wait_for(self, name: str, text: str, limit_s: float = START_S) -> None:
        def is_there() -> bool:
            return text in self.log(name) or self._started[name].poll() is not None

        wait_until(is_there, f'{text!r} in {name}', limit_s)
        assert text in self.log(name), self.log(name)[-3000:]

    def types(self, line: str, status: int = 0) -> str:
        """Run a command in the shell; return what it prints."""
        line = line.replace('localhost:9300', f'127.0.0.1:{self.metrics}')
        result = subprocess.run(
            ['bash', '-c', line],
            capture_output=True,
            text=True,
            env=self._environment,
            cwd=self.folder,
            timeout=STEP_S,
        )
        assert result.returncode == status, (line, result.stdout, result.stderr)
        return result.stdout

    def interrupt(self, name: str) -> None:
        """Press Ctrl-C."""
        self._started[name].send_signal(signal.SIGINT)
        self._started[name].wait(STEP_S)

    def end(self) -> None:
        for name, process in self._started.items():
            if process.poll() is None:
                self.interrupt(name)
            print(f'--- {name}\n{self.log(name)[-3000:]}')


@pytest.fixture
def walk(tmp_path) -> Iterator[Walk]:
    walked = Walk(tmp_path)
    yield walked
    walked.end()


def test_a_user_of_lerobot_gets_to_the_target_and_to_a_rollout(walk):
    walk.up(FLEET)
    walk.wait_for(FLEET, 'serving reach@')
    walk.wait_for(FLEET, 'policy_router responds')
    walk.client('arm', command(CLIENT, 'reach_sim'))
    walk.wait_for('arm', 'attempt 1: on the target after')
    walk.wait_for('arm', 'attempt 4: ')
    check_issue_1500(walk)
    check_issue_1557(walk)
    walk.interrupt('arm')
    # joints in another order
    walk.client('swapped', command(CLIENT, '--robot.joints'))
    walk.wait_for('swapped', 'Failed to connect to policy server')
    assert 'LeRobot sends no names of actions' in walk.log('swapped')
    assert 'attempt' not in walk.log('swapped')
    # loaded once, whatever clients came
    assert walk.log(FLEET).count('serving reach@') == 1
    walk.interrupt(FLEET)
    walk.up(ROLLOUT)
    for name in ('serving v1@', 'serving v2@', ': healthy'):
        walk.wait_for(ROLLOUT, name)
    walk.types(command('lerobot-serve rollout start'))
    assert 'v2@' in walk.types(command('lerobot-serve rollout status'))
    walk.client('in_canary', command(CLIENT, 'reach_sim'))
    walk.wait_for('in_canary', 'attempt 1: on the target after')
    episode = found_episode(walk)
    reported = command('lerobot-serve outcome').replace(SHOWN_EPISODE, episode)
    assert f'{episode} counts as success' in walk.types(reported)
    walk.interrupt('in_canary')
    assert '1 of 1 episodes succeeded' in walk.types(command('lerobot-serve rollout status'))
    walk.types(command('lerobot-serve rollout abort'))
    walk.interrupt(ROLLOUT)
    audited = walk.types(command('lerobot-serve audit'))
    assert '1 session of 1 caller came through a gateway' in audited


def found_episode(walk: Walk) -> str:
    line = command('grep -h \'"kind":"placement"\'')
    found: list[str] = []

    def is_there() -> bool:
        found[:] = re.findall(r'"episode_id":"([^"]+)"', walk.types(f'{line} || true'))
        return bool(found)

    wait_until(is_there, 'the episode of the client in the trace')
    assert found[-1].startswith('gateway/lerobot/127.0.0.1:')
    return found[-1]


def check_issue_1500(walk: Walk) -> None:
    printed = walk.types(command('curl'))
    answered = re.search(r'requests_total\{protocol="lerobot",status="ok"\} (\S+)', printed)
    assert answered and float(answered[1]) >= 1


def check_issue_1557(walk: Walk) -> None:
    # in their order
    printed = walk.types(command('grep -ho', 'QUEUE SIZE').partition(' | sort')[0])
    assert 'QUEUE SIZE: 0\n' in walk.types(command('grep -ho', 'QUEUE SIZE'))
    sizes = [int(line.rpartition(' ')[2]) for line in printed.splitlines()]
    assert sizes[0] == 0
    # one action is taken between two observations, so the queue was refilled before it was empty
    assert any(after >= before > 0 for before, after in pairwise(sizes)), sizes


def test_an_edge_controller_drives_the_simulated_robot_and_the_audit_judges_it(walk):
    walk.up(ROBOTS)
    walk.wait_for(ROBOTS, 'serving reach@')
    line = command('lerobot-serve robots')
    wait_until(lambda: 'STREAMING' in walk.types(line).upper(), 'the robot moves', START_S)
    assert '"stalls"' in walk.types(command('lerobot-serve robots --json'))
    walk.interrupt(ROBOTS)
    audited = walk.types(command('lerobot-serve audit', 'edge_traces'))
    shown = next(text for kind, text in BLOCKS if kind == 'text' and text.startswith('holds '))
    assert shown.count('\n') == 2
    assert all(line in audited for line in shown.splitlines()), audited

# SPDX-License-Identifier: Apache-2.0
"""docs/new_version.md, word for word, with the fleet that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import re
import shlex
import signal
import subprocess

import pytest
from support.paths import REPOSITORY
from support.waiting import wait_until

from lerobot_serve.tools.processes.node_processes import executable_path
from lerobot_serve.tools.processes.parent_death import end_with_parent

pytestmark = pytest.mark.slow
pytest.importorskip('torch', reason='the shipped policies run on torch')
SECTION = 'Walk through it'
START_S, STEP_S, END_S = 120.0, 180.0, 90.0


def walked_commands() -> list[str]:
    """Return the commands of the section, in their order."""
    page = (REPOSITORY / 'docs' / 'new_version.md').read_text()
    section = page.split(f'## {SECTION}\n')[1].split('\n## ')[0]
    return [
        line
        for block in re.findall(r'```\n(.*?)```', section, re.DOTALL)
        for line in block.splitlines()
    ]


class Walk:
    """A person with two terminals and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, 'ROS_HOME': str(folder / 'ros'), 'HOME': str(folder)}
        self._log = folder / 'up.log'

    def _start(self, line: str, output: object) -> subprocess.Popen[bytes]:
        program, *words = shlex.split(line)
        return subprocess.Popen(
            end_with_parent([str(executable_path(program)), *words]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._folder,
        )

    def up(self, line: str) -> subprocess.Popen[bytes]:
        with self._log.open('w') as log:
            return self._start(line, log)

    @property
    def log(self) -> str:
        return self._log.read_text(errors='replace')

    def types(self, line: str) -> tuple[int, str]:
        """Run a command; return its exit status and what it prints."""
        process = self._start(line, subprocess.PIPE)
        printed, _ = process.communicate(timeout=STEP_S)
        return process.returncode, printed.decode()


@pytest.fixture
def walk(tmp_path) -> Iterator[Walk]:
    return Walk(tmp_path)


SHOWN: dict[str, Callable[[str], bool]] = {
    'rollout shadow': lambda out: '/rehearsal/policy_server:' in out,
    'rollout start': lambda out: 'rollout: off -> ' in out and ' by ' in out,
    'rollout status': lambda out: 'guard changed by the cage' in out and 'of 3000 commands' in out,
    'rollout pause': lambda out: '-> paused' in out,
    'rollout resume': lambda out: 'paused -> ' in out,
    'rollout promote': lambda out: '100 % of all new episodes' in out and '-> promoted' in out,
    'rollout finish': lambda out: 'slot a serves reach_v2@' in out,
    'rollout history': lambda out: all(
        part in out
        for part in (
            'rollout restarted',
            'better at the edge [by ',
            'rollout paused',
            'seen enough [by ',
            'rollout finished',
            'episodes and outcomes of each policy:',
            'reach_v2@',
        )
    ),
    'robots': lambda out: '2 robots:' in out,
}


def test_the_page_is_walked_word_for_word(walk):
    first, *others = walked_commands()
    assert first == 'lerobot-serve up two_versions'
    assert {name for line in others for name in SHOWN if f' {name}' in line} == set(SHOWN)
    fleet = walk.up(first)
    try:
        wait_until(lambda: walk.log.count('CONNECTING -> STREAMING') >= 2, 'they move', START_S)
        for line in others:
            status, printed = walk.types(line)
            assert status == 0, (line, printed, walk.log[-3000:])
            (shown,) = [check for name, check in SHOWN.items() if f'-serve {name}' in line]
            assert shown(printed), (line, printed)
        fleet.send_signal(signal.SIGINT)
        assert fleet.wait(END_S) == 0, walk.log[-3000:]
    finally:
        fleet.kill()
        fleet.wait()

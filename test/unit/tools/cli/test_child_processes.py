# SPDX-License-Identifier: Apache-2.0
"""What a process starts ends with it."""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest
from support.paths import REPOSITORY
from support.waiting import wait_until

from lerobot_serve.tools.processes.parent_death import end_with_parent

# starts a child, says its number, and waits to be killed
PARENT = """
import subprocess, sys
from lerobot_serve.tools.processes.parent_death import end_with_parent
child = subprocess.Popen(end_with_parent(['sleep', '600']))
print(child.pid, flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


@pytest.mark.skipif(not shutil.which('setpriv'), reason='needs setpriv of util-linux')
def test_a_child_ends_when_its_parent_is_killed():
    root = REPOSITORY
    with subprocess.Popen(
        [sys.executable, '-c', PARENT],
        env={**os.environ, 'PYTHONPATH': str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        child = int(parent.stdout.readline())
        wait_until(lambda: b'sleep' in Path(f'/proc/{child}/comm').read_bytes(), 'it begins')
        parent.kill()
    wait_until(lambda: not is_alive(child), f'process {child} outlives its parent')


def test_the_child_is_the_command_itself():
    command = [sys.executable, '-c', 'import os; print(os.getpid())']
    with subprocess.Popen(end_with_parent(command), stdout=subprocess.PIPE) as child:
        assert int(child.stdout.read()) == child.pid


def test_without_setpriv_the_command_is_started_as_it_is(monkeypatch):
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    assert end_with_parent(('sleep', '1')) == ['sleep', '1']

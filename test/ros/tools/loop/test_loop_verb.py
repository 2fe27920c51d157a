# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve loop run`, as `up` and a terminal start it: end, journal and refusals."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
import signal
import subprocess

import pytest
from support.waiting import wait_until

from lerobot_serve.tools.loop.journal import JOURNAL_FILE
from lerobot_serve.tools.processes import end_with_parent, executable_path

START_S, END_S = 60.0, 30.0


@pytest.fixture
def command(tmp_path) -> list[str]:
    (tmp_path / 'v1').mkdir()
    folders = {'gates': 'gates', 'recordings': 'bags', 'champion': 'v1', 'folder': 'loop'}
    options = [f'--{name}={tmp_path / folder}' for name, folder in folders.items()]
    words = [str(executable_path('lerobot-serve')), 'loop', 'run', *options, '--period-s=0.2']
    return end_with_parent([*words, f'--store={tmp_path / "store"}'])


@contextlib.contextmanager
def running(command: list[str], folder: Path, *, is_blocked: bool) -> Iterator[subprocess.Popen]:
    """Run the loop; `is_blocked`: as `up`, which waits for its own signals."""
    mask = {signal.SIGINT, signal.SIGTERM} if is_blocked else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, mask)
    try:
        with (folder / 'loop.log').open('wb') as log:
            process = subprocess.Popen(
                command,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, 'ROS_HOME': str(folder / 'ros')},
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        wait_until(lambda: 'loop started' in log_of(folder), 'it has started', START_S)
        yield process
    finally:
        process.kill()
        process.wait()


def log_of(folder: Path) -> str:
    return (folder / 'loop.log').read_text()


def events(folder: Path) -> list[str]:
    lines = (folder / 'loop' / JOURNAL_FILE).read_text().splitlines()
    return [json.loads(line)['event'] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize('is_blocked', [False, True])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_asked_to(command, tmp_path, is_blocked, number):
    with running(command, tmp_path, is_blocked=is_blocked) as process:
        process.send_signal(number)
        assert process.wait(END_S) == 0, log_of(tmp_path)
    assert events(tmp_path)[-1] == 'loop_ended'


@pytest.mark.slow
def test_a_second_one_is_refused_and_one_after_a_kill_is_not(command, tmp_path):
    with running(command, tmp_path, is_blocked=False) as process:
        second = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        assert second.returncode == 1
        assert 'another loop uses' in second.stderr
        process.kill()
        process.wait()
    with running(command, tmp_path, is_blocked=False) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0
    assert events(tmp_path).count('loop_started') == 2


@pytest.mark.parametrize(
    ('option', 'text'),
    [
        ('--champion=/nowhere', 'is not a folder'),
        ('--robot=/nowhere.yaml', 'is not a file'),
        ('--plan=50,20', '--plan'),
        ('--gate-recordings=29', 'in [30, 10000]'),
        ('--period-s=0', 'in [0.1, 3600]'),
    ],
)
def test_a_mistake_is_refused_in_a_line(command, option, text):
    done = subprocess.run([*command, option], capture_output=True, text=True, timeout=START_S)
    assert done.returncode in (1, 2)
    assert text in done.stderr and 'Traceback' not in done.stderr

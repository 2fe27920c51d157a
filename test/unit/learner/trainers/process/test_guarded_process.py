# SPDX-License-Identifier: Apache-2.0
"""A command below its guard: output, status, signals, and that nothing outlives its parent."""

from __future__ import annotations

import os
from pathlib import Path
import signal
import subprocess
import sys

import pytest
from support.waiting import wait_until

from lerobot_serve.learner.trainers.process.guarded_process import GuardedProcess

LIMIT_S = 30.0
# prints its process id and that of a worker in a session of its own, as torchrun's are
WORKERS = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, '-c', 'import time; time.sleep(600)']
if 'stubborn' in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen(sleep, start_new_session=True)
print(os.getpid(), worker.pid, flush=True)
if 'leave' not in sys.argv:
    time.sleep(600)
"""
# a learner that starts the above and waits
LEARNER = """
import pathlib, sys
from lerobot_serve.learner.trainers.process.guarded_process import GuardedProcess
with GuardedProcess(sys.argv[1:], folder=pathlib.Path.cwd(), environment={}) as process:
    while (piece := process.read(0.1)) is not None:
        sys.stdout.buffer.write(piece)
        sys.stdout.flush()
"""


def python(source: str, *words: str) -> list[str]:
    return [sys.executable, '-c', source, *words]


def started(words: list[str], folder: Path, **environment: str) -> GuardedProcess:
    return GuardedProcess(words, folder=folder, environment={**os.environ, **environment})


def output_of(process: GuardedProcess) -> bytes:
    printed = b''
    while (piece := process.read(LIMIT_S)) is not None:
        printed += piece
    return printed


def first_line(process: GuardedProcess) -> list[int]:
    printed = b''
    while not printed.endswith(b'\n'):
        printed += process.read(LIMIT_S) or b''
    return [int(word) for word in printed.split()]


def runs(process: int) -> bool:
    try:
        status = Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return False
    return status != 'Z'


def wait_for_end(processes: list[int]) -> None:
    wait_until(lambda: not any(map(runs, processes)), f'the end of {processes}', LIMIT_S)


def test_output_exit_status_folder_and_environment(tmp_path):
    source = 'import os, sys; print(os.getcwd(), os.environ["A"], file=sys.stderr); sys.exit(3)'
    with started(python(source), tmp_path, A='b') as process:
        assert output_of(process) == f'{tmp_path} b\n'.encode()
        assert process.exit_status() == 3


def test_a_program_that_is_not_there(tmp_path):
    with started(['/nowhere/at_all'], tmp_path) as process:
        printed = output_of(process)
        assert printed == b'/nowhere/at_all cannot be started: No such file or directory\n'
        assert process.exit_status() == 127


@pytest.mark.parametrize(
    ('sent', 'number'), [(b'I', signal.SIGINT), (b'T', signal.SIGTERM), (b'K', signal.SIGKILL)]
)
def test_signals_reach_the_command(tmp_path, sent, number):
    source = f'import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL)\n{WORKERS}'
    with started(python(source), tmp_path) as process:
        processes = first_line(process)
        process.send(sent)
        assert output_of(process) == b''
        assert process.exit_status() == 128 + number
    wait_for_end(processes)


def niceness_of_session(process: int) -> int:
    return int(Path(f'/proc/{process}/autogroup').read_text().split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path('/proc/self/autogroup').exists(), reason='a kernel without autogroup')
def test_each_session_below_it_has_the_niceness_of_its_learner(tmp_path):
    nice = ['nice', '-n', '7', sys.executable, '-c', LEARNER]
    words = [*nice, *python(WORKERS)]
    # the tests may have one of their own
    wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path) as learner:
        assert learner.stdout
        processes = [int(word) for word in learner.stdout.readline().split()]
        try:
            wait_until(
                lambda: {niceness_of_session(each) for each in processes} == {wanted},
                'both sessions have its niceness',
                LIMIT_S,
            )
        finally:
            learner.kill()
    wait_for_end(processes)


def test_a_stubborn_command_ends_by_kill_only(tmp_path):
    with started(python(WORKERS, 'stubborn'), tmp_path) as process:
        processes = first_line(process)
        for sent in (b'I', b'T'):
            process.send(sent)
        assert process.read(0.5) == b'' and all(map(runs, processes))
        process.send(b'K')
        assert output_of(process) == b''
    wait_for_end(processes)


def test_what_a_command_leaves_behind_is_ended(tmp_path):
    with started(python(WORKERS, 'leave'), tmp_path) as process:
        processes = first_line(process)
        # a worker that held the output open would keep this from ending
        assert output_of(process) == b''
        assert process.exit_status() == 0
    wait_for_end(processes)


def test_leaving_the_block_ends_the_command(tmp_path):
    with started(python(WORKERS, 'stubborn'), tmp_path) as process:
        processes = first_line(process)
    wait_for_end(processes)


def test_everything_ends_with_a_learner_that_is_killed(tmp_path):
    learner = subprocess.Popen(
        python(LEARNER, *python(WORKERS, 'stubborn')), stdout=subprocess.PIPE, cwd=tmp_path
    )
    processes = [int(word) for word in learner.stdout.readline().split()]
    assert len(processes) == 2 and all(map(runs, processes))
    os.kill(learner.pid, signal.SIGKILL)
    learner.wait(LIMIT_S)
    learner.stdout.close()
    wait_for_end(processes)


def test_a_command_ends_with_a_guard_that_is_killed(tmp_path):
    with started(python(WORKERS), tmp_path) as process:
        command, worker = first_line(process)
        os.kill(process._process.pid, signal.SIGKILL)
        wait_for_end([command])
        # the worker still holds the output: its end is not waited for
        wait_until(lambda: process.read(0.1) is None, 'the end', LIMIT_S)
    os.kill(worker, signal.SIGKILL)
    wait_for_end([worker])

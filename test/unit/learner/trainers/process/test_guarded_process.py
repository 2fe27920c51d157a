# SPDX-License-Identifier: Apache-2.0
"""A command below its guard: output, log, progress, status, signals, and its end."""

from __future__ import annotations

import os
from pathlib import Path
import signal
import subprocess
import sys

from hypothesis import given
import hypothesis.strategies as st
import pytest
from support.waiting import wait_until

from lerobot_serve.learner.trainers.guarded_process import (
    GuardedProcess,
    LINE_LIMIT_BYTES,
    LogProgress,
    OutputLog,
)
from lerobot_serve.learner.trainers.trainer_file import LOSS_PATTERN, STEP_PATTERN

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
from lerobot_serve.learner.trainers.guarded_process import GuardedProcess
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


LINE = (
    'INFO 2026-11-26 12:00:00 ot_train.py:450 step:{step} smpl:16 ep:1 epch:0.27 loss:{loss} '
    'grdn:45.123 lr:1.0e-05 updt_s:0.1 data_s:0.0'
)
BAR = 'Training: 25%|##4       | {step}/400 [00:10<00:30, 10.0step/s]'


def defaults(steps: int) -> LogProgress:
    return LogProgress(STEP_PATTERN, LOSS_PATTERN, steps)


def test_lines_of_lerobot_train():
    seen = defaults(400)
    assert seen.progress().loss is None and seen.progress().remaining_s is None
    assert seen.see(BAR.format(step=0), 100.0) is False
    assert seen.see(BAR.format(step=100), 110.0)
    assert seen.progress().done_share == 0.25 and seen.progress().loss is None
    assert seen.progress().remaining_s == pytest.approx(30.0)
    assert seen.see(LINE.format(step=200, loss='0.123'), 120.0)
    assert (seen.progress().done_share, seen.progress().loss) == (0.5, 0.123)
    assert seen.progress().remaining_s == pytest.approx(20.0)
    assert not seen.see('Creating dataset', 121.0)


def test_rounded_thousands_never_go_back():
    seen = defaults(4000)
    shares = []
    for step, line in ((1400, BAR), ('1K', LINE), ('2K', LINE), (1900, BAR), ('2.5K', LINE)):
        seen.see(line.format(step=step, loss='1e-2'), 1.0)
        shares.append(seen.progress().done_share)
    assert shares == [0.35, 0.35, 0.5, 0.5, 0.625]


@pytest.mark.parametrize(
    'line', ['Map: 100%|###| 60/60 [00:00<00:00]', 'step:', 'step:x loss:none', 'substep:3', '']
)
def test_other_lines_are_no_progress(line):
    seen = defaults(400)
    assert not seen.see(line, 1.0)
    assert seen.progress().done_share == 0


def test_a_training_has_at_most_all_of_its_steps():
    seen = defaults(10)
    seen.see('step:12', 1.0)
    assert seen.progress().done_share == 1.0


def test_without_steps_only_the_loss_is_known():
    seen = defaults(0)
    assert seen.see(LINE.format(step=200, loss='0.5'), 1.0)
    assert (seen.progress().done_share, seen.progress().loss) == (0.0, 0.5)


def test_patterns_of_other_programs():
    seen = LogProgress(r'iter (\d+),', r'l=([\d.]+)', 50)
    assert seen.see('iter 5, l=2.5', 1.0)
    assert (seen.progress().done_share, seen.progress().loss) == (0.1, 2.5)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('logs')


@given(st.lists(st.sampled_from((b'step:1', b'\n', b'\r', b' loss', b'\x1b[33m')), max_size=30))
def test_lines_do_not_depend_on_the_pieces(folder, pieces):
    whole, cut = (OutputLog(folder / name) for name in ('whole', 'cut'))
    lines = whole.add(b''.join(pieces)) + whole.close()
    assert [line for piece in pieces for line in cut.add(piece)] + cut.close() == lines
    assert (folder / 'whole').read_bytes() == (folder / 'cut').read_bytes() == b''.join(pieces)
    assert whole.last_line == cut.last_line == (lines[-1] if lines else '')
    assert not any('\x1b' in line or '\n' in line for line in lines)


def test_the_log_stays_within_its_size_and_keeps_the_end(tmp_path):
    log = OutputLog(tmp_path / 'train.log', limit_bytes=1000)
    for number in range(500):
        log.add(b'line %d\n' % number)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ['train.log', 'train.log.1']
    assert sum(file.stat().st_size for file in files) <= 1000
    kept = (tmp_path / 'train.log.1').read_text() + (tmp_path / 'train.log').read_text()
    assert kept.splitlines() == [f'line {n}' for n in range(500)][-len(kept.splitlines()) :]
    assert log.last_line == 'line 499'


def test_a_line_without_an_end_takes_no_memory(tmp_path):
    log = OutputLog(tmp_path / 'train.log')
    for _ in range(100):
        assert log.add(b'x' * 10_000) == []
    assert log.close() == ['x' * LINE_LIMIT_BYTES]

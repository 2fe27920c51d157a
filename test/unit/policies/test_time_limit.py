# SPDX-License-Identifier: Apache-2.0
"""A program that does not return: it is asked to end, and then its process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

from support.waiting import wait_until

from lerobot_serve.policies.runtime import time_limit
from lerobot_serve.policies.runtime.time_limit import EXIT_STATUS, longest_run_s, TimeLimit

LIMIT_S = 60.0
# a run that waits for a line
RUN = """
import sys
from lerobot_serve.policies.runtime.time_limit import TimeLimit
limit = TimeLimit(0.0, lambda: print('asked', flush=True), shortest_s={0})
for number in range(3):
    with limit.run(1):
        print('runs', flush=True)
        sys.stdin.readline()
"""


def started(shortest_s: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, '-c', RUN.format(shortest_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_that_does_not_end_is_asked_to_and_then_ends_its_process():
    with started(0.2) as process:
        assert process.stdout.readline() == 'runs\n'
        assert process.stdout.readline() == 'asked\n'
        assert process.wait(LIMIT_S) == EXIT_STATUS
        assert 'does not end; this server ends' in process.stderr.read()


def test_a_process_that_was_stopped_is_not_late():
    with started(1.0) as process:
        assert process.stdout.readline() == 'runs\n'
        process.send_signal(signal.SIGSTOP)
        # longer than the whole limit: to be asked, and to end
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        output, errors = process.communicate('\n\n\n', timeout=LIMIT_S)
        assert (process.returncode, errors) == (0, '')
        assert output == 'runs\n' * 2


def test_runs_that_end_are_not_added_up_and_the_thread_ends_after_them():
    asked, ended = [], []
    limit = TimeLimit(0.0, lambda: asked.append(1), end=ended.append, shortest_s=0.4)
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        with limit.run(1):
            time.sleep(0.01)
    assert (asked, ended) == ([], [])
    wait_until(lambda: 'time limit' not in {t.name for t in threading.enumerate()}, 'its end')
    # it watches the next run as well
    with limit.run(1):
        wait_until(lambda: ended, 'the end of the run')
    assert len(asked) == len(ended) == 1


def test_a_batch_may_take_as_long_as_its_requests():
    asked: list[int] = []
    limit = TimeLimit(0.0, lambda: asked.append(1), end=lambda _: None, shortest_s=0.1)
    with limit.run(1000):
        time.sleep(0.5)
    assert not asked


def test_the_trial_is_short():
    runs: list[int] = []
    longest_run_s(lambda: runs.append(1))
    assert len(runs) == time_limit.TRIAL_RUNS
    longest_run_s(lambda: (runs.append(1), time.sleep(time_limit.TRIAL_S))[0])
    assert len(runs) == time_limit.TRIAL_RUNS + 1

# SPDX-License-Identifier: Apache-2.0
"""
The child process of one step: `python -m lerobot_serve.tools.learning.program PIPE`. The job is
the first line of its standard input, whose end is that of the learner.

The main thread works, the thread `life` watches the standard input. The process has the lowest
priority and is the first that the kernel ends when memory runs out: a robot on this machine does
not wait for it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import signal
import sys
import threading
import time
import traceback

from lerobot_serve.entry_points import SIGNALS
from lerobot_serve.errors import UserError
from lerobot_serve.learner.steps import (
    Conversion,
    ConvertJob,
    decoded_job,
    encoded,
    Failed,
    Job,
    Report,
    ScanJob,
    TrainJob,
)
from lerobot_serve.learner.trainers.guard import share_niceness
from lerobot_serve.parameters import ParameterError

NICE, ATTEMPTS, AGAIN_S = 19, 40, 0.05
OUT_OF_MEMORY_SCORE = '1000'
# after the end of the learner, or its request
GRACE_S = 10.0
JOB_LIMIT_BYTES = 1 << 26
ENDED = 3


class Reporter:
    """Writes reports to the pipe. Any thread of the child."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def __call__(self, report: Report) -> None:
        line = encoded(report)
        # without a reader there is no learner; `life` ends the process
        with self._lock, contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._pipe, line) :]


def run(job: Job, report: Reporter, stop: threading.Event) -> Report:
    """Do the work; return the result. Raises UserError, ParameterError, ValueError, OSError."""
    if isinstance(job, Conversion):
        # it imports LeRobot, which takes seconds
        from lerobot_serve.tools.learning.convert import convert_bags, stage_bags

        return (
            convert_bags(job, report) if isinstance(job, ConvertJob) else stage_bags(job, report)
        )
    from lerobot_serve.tools.learning.steps import publish_policy, scan, train

    if isinstance(job, ScanJob):
        return scan(job, report)
    return train(job, report, stop) if isinstance(job, TrainJob) else publish_policy(job, report)


def result_of(job: Job, report: Reporter, stop: threading.Event) -> Report:
    """Return the result or the failure of a job."""
    try:
        return run(job, report, stop)
    except OSError as error:
        where = f'{error.filename}: ' if error.filename else ''
        return Failed(
            f'{where}{error.strerror or error}; make room, check the permissions, and begin the '
            'round again'
        )
    except (UserError, ParameterError, ValueError) as error:
        return Failed(str(error) or type(error).__name__)
    except Exception as error:
        # of a library, or a fault of this program: the log has the traceback
        traceback.print_exc()
        return Failed(f'{type(error).__name__}: {error}'[:900])


def lower_priority() -> None:
    """Let every other process go first. What is not allowed is left out."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    # not the session of a terminal, in which others work
    for _ in range(ATTEMPTS if os.getsid(0) == os.getpid() else 0):
        if share_niceness(os.getpid()):
            break
        time.sleep(AGAIN_S)
    with contextlib.suppress(OSError):
        Path('/proc/self/oom_score_adj').write_text(OUT_OF_MEMORY_SCORE)


def watch_life(stop: threading.Event, *, is_trainer: bool) -> None:
    """End this process soon after the learner's end: a trainer may end its own processes."""
    # the standard input is read to its end, whatever comes
    while os.read(0, 4096):
        pass
    end_soon(stop, is_trainer=is_trainer)


def end_soon(stop: threading.Event, *, is_trainer: bool) -> None:
    """End at once, or for a trainer as soon as it has stopped, at most after GRACE_S."""
    if is_trainer:
        stop.set()
        threading.Event().wait(GRACE_S)
    # the group too: what a trainer started and did not end
    os.killpg(os.getpgrp(), signal.SIGKILL)


def read_job() -> Job:
    """Return the job. Raises ValueError when the learner is gone."""
    line = b''
    while not line.endswith(b'\n'):
        # byte by byte behind the line would be lost for the watch
        data = os.read(0, 1 << 16)
        if not data or len(line) > JOB_LIMIT_BYTES:
            raise ValueError('there is no job')
        line += data
    return decoded_job(line)


def main(pipe: int) -> int:
    # a node blocks them in all its threads, and a child inherits that
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    lower_priority()
    stop = threading.Event()
    job = read_job()
    is_trainer = isinstance(job, TrainJob)

    def on_signal(*_: object) -> None:
        if is_trainer:
            stop.set()
        else:
            # every file is written so that a kill leaves no half of it
            os._exit(ENDED)

    signal.signal(signal.SIGTERM, on_signal)
    life = threading.Thread(
        target=watch_life, args=(stop,), kwargs={'is_trainer': is_trainer}, daemon=True
    )
    life.start()
    report = Reporter(pipe)
    report(result_of(job, report, stop))
    sys.stdout.flush()
    # destructors of native libraries may hang
    os._exit(0)


if __name__ == '__main__':
    raise SystemExit(main(int(sys.argv[1])))

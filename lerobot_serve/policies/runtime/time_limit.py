# SPDX-License-Identifier: Apache-2.0
"""
Limit the time of a program from elsewhere by what its trial took.

Native code that does not return can only be ended with its process. So a run that takes FACTOR
times the longest of the trial is first asked to end; one that continues ends this process with
EXIT_STATUS, as a crash would: `up`, systemd and Kubernetes start the server again, and a router
gives its episodes to the other servers meanwhile. A server that stayed would answer no robot, and
would still look healthy to all that only see its process.

The thread that predicts enters `run`; a thread of its own watches while there are requests. It
counts its own steps, since a process that was stopped (SIGSTOP, a paused machine) is not late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import math
import os
import sys
import threading
import time

# far beyond what a busy machine does to a run; the quickest program has SHORTEST_S
FACTOR, SHORTEST_S = 50.0, 5.0
TRIAL_RUNS, TRIAL_S = 20, 1.0
# of the shortest limit, and without a run until the thread ends
STEPS, IDLE_STEPS = 20, 4
EXIT_STATUS = 70


def longest_run_s(run: Callable[[], object]) -> float:
    """Return the longest of some runs, at most TRIAL_RUNS and about TRIAL_S together."""
    times_s: list[float] = []
    while len(times_s) < TRIAL_RUNS and sum(times_s) < TRIAL_S:
        begin_s = time.monotonic()
        run()
        times_s.append(time.monotonic() - begin_s)
    return max(times_s)


class TimeLimit:
    """See the module. `interrupt` asks a run to end, in the thread that watches."""

    def __init__(
        self,
        longest_s: float,
        interrupt: Callable[[], None],
        *,
        end: Callable[[str], None] | None = None,
        shortest_s: float = SHORTEST_S,
    ) -> None:
        self._limit_s = max(FACTOR * longest_s, shortest_s)
        self._step_s = shortest_s / STEPS
        self._interrupt, self._end = interrupt, end or end_process
        self._lock = threading.Lock()
        self._is_watched = False
        # of the run that continues: how many times as long as one request it may take; 0 for none
        self._requests = 0
        self._number = 0

    @contextlib.contextmanager
    def run(self, requests: int) -> Iterator[None]:
        """Limit the time until the block ends."""
        self._number += 1
        self._requests = requests
        if not self._is_watched:
            self._start()
        try:
            yield
        finally:
            self._requests = 0

    def _start(self) -> None:
        with self._lock:
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name='time limit', daemon=True).start()

    def _watch(self) -> None:
        """Look at the runs until there was none for IDLE_STEPS."""
        number = steps = idle_steps = 0
        while True:
            time.sleep(self._step_s)
            if number != self._number:
                number, steps, idle_steps = self._number, 0, 0
            elif self._requests:
                steps += 1
                self._check(steps)
            elif (idle_steps := idle_steps + 1) >= IDLE_STEPS:
                with self._lock:
                    if number == self._number:
                        self._is_watched = False
                        return

    def _check(self, steps: int) -> None:
        """Act on a run that was seen in so many steps."""
        allowed = math.ceil(self._limit_s * self._requests / self._step_s)
        if steps == allowed:
            self._interrupt()
        elif steps == 2 * allowed:
            self._end(
                f'the program of the policy has run for {steps * self._step_s:.1f} s, more than '
                f'{FACTOR:g} times its longest run when it was tried, and does not end; this '
                'server ends, so that robots get another one'
            )


def end_process(why: str) -> None:
    """End this process at once: a thread of it cannot be ended."""
    print(f'error: {why}', file=sys.stderr, flush=True)
    os._exit(EXIT_STATUS)

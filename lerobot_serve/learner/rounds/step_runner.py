# SPDX-License-Identifier: Apache-2.0
"""
Run one step at a time; a step waits until the process of an abandoned one has exited. The thread
`rounds`.
"""

from __future__ import annotations

from collections.abc import Iterator
import math
from pathlib import Path
import threading

from lerobot_serve.learner.steps.lines import Done, Failed, Job, Report
from lerobot_serve.learner.steps.process import StartStep, StepProcess

# while a process ends; its end is not an event
POLL_S = 0.05
# of all processes, when the learner ends: less than the runtime waits for a thread
STOP_LIMIT_S = 3.0


class StepRunner:
    """See the module."""

    def __init__(self, start_step: StartStep) -> None:
        self._start_step = start_step
        self._running: StepProcess | None = None
        self._ending: list[StepProcess] = []
        self._queued: tuple[Job, Path] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no step runs or waits."""
        return not (self._running or self._queued)

    @property
    def readable(self) -> list[StepProcess]:
        """What `select` waits for."""
        return [self._running] if self._running else []

    @property
    def poll_s(self) -> float:
        """How soon there is something to do besides what `select` finds; infinite for nothing."""
        if self._running and self._running.has_more:
            return 0.0
        return POLL_S if self._ending else math.inf

    def start(self, job: Job, log: Path) -> None:
        """Start a step, as soon as a dropped one is gone. Raises OSError."""
        assert self.is_idle
        self._queued = (job, log)
        self.advance()

    def advance(self) -> None:
        """Start what waits. Raises OSError."""
        self._ending = [step for step in self._ending if not step.has_ended()]
        if self._queued and not self._ending:
            (job, log), self._queued = self._queued, None
            self._running = self._start_step(job, log)

    def poll(self) -> Iterator[Report]:
        """Yield what the running step reports; a result is the last of all."""
        step = self._running
        for report in step.poll() if step else ():
            if isinstance(report, Done | Failed):
                # its process ends now
                self.drop()
            yield report

    def drop(self) -> None:
        """End the running step, or the one that waits; nothing of it counts any more."""
        self._queued = None
        if self._running:
            self._running.request_end()
            self._ending.append(self._running)
            self._running = None

    def end_all(self) -> None:
        """End all processes and wait for them."""
        self.drop()
        for step in self._ending:
            step.request_end(STOP_LIMIT_S)
        pause = threading.Event()
        while self._ending:
            self._ending = [step for step in self._ending if not step.has_ended()]
            if self._ending:
                pause.wait(POLL_S)

# SPDX-License-Identifier: Apache-2.0
"""
The learner of a night: the real rounds with their memory, and the real scan, training and
publication, in this process instead of children. A conversion of bags takes LeRobot and seconds,
so it is played: rows of random pictures with the motion of the parent. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
import os
from pathlib import Path
import shutil
import signal
import threading

import msgspec

from lerobot_serve.contract import records
from lerobot_serve.contract.records import LearnerState, RecordedEpisode
from lerobot_serve.learner.memory import Memory
from lerobot_serve.learner.rounds.learner import Learner
from lerobot_serve.learner.rounds.settings import LearnerSettings
from lerobot_serve.learner.step_process import END_LIMIT_S
from lerobot_serve.learner.steps import (
    ConvertDone,
    ConvertJob,
    Failed,
    Job,
    PublishJob,
    Report,
    ScanJob,
    StageDone,
    StageJob,
    TrainJob,
)
from lerobot_serve.learner.versions import canary_news
from lerobot_serve.tools.learning.program import Reporter, result_of
from lerobot_serve.tools.learning.steps import publish_policy
from lerobot_serve.versions.file_hash import folder_sha256
from lerobot_serve_interfaces.msg import CanaryState
from support.learner.tiny_dataset import Episode, read_rows, write_dataset, write_rows
from support.night.clock import NightClock
from support.processes.full_disk import files_of_at_most

TURN_S = 10.0
DURATIONS_S: dict[type[Job], float] = {
    ScanJob: 2.0,
    StageJob: 20.0,
    ConvertJob: 40.0,
    TrainJob: 300.0,
    PublishJob: 10.0,
}
# of the dataset that a training reads: more take longer and show no more
EPISODES_READ, ROWS_READ = 6, 4
DISK_FULL_BYTES = 4096
SHIFT = 2.0
TRAINER = 'builtin: {{steps: {steps}, batch_size: 8, learning_rate: {rate}}}'
# a few steps stay near the parent; wrong labels are learned in more
SHORT, LONG = TRAINER.format(steps=6, rate=0.0003), TRAINER.format(steps=12, rate=0.003)


class Silent(Reporter):
    """Reports of progress that none reads."""

    def __init__(self) -> None:
        super().__init__(-1)

    def __call__(self, report: Report) -> None:
        """Drop it."""


def write_labels(dataset: Path, shift: float) -> None:
    """Shift what each row commands [rad]."""
    rows = read_rows(dataset)
    for row in rows:
        row['action'] = [value + shift for value in row['action']]
    write_rows(dataset, rows)


class NightStep:
    """A step whose work is done when its time is over."""

    has_more = False

    def __init__(self, job: Job, clock: NightClock, work: Callable[[Job], Report]) -> None:
        self.job, self._clock, self._work = job, clock, work
        self._due_s = clock.monotonic_s() + DURATIONS_S[type(job)]
        self.is_over = False

    def fileno(self) -> int:
        raise AssertionError('a learner of the night does not wait')

    def poll(self) -> list[Report]:
        if self.is_over or self._clock.monotonic_s() < self._due_s:
            return []
        self.is_over = True
        return [self._work(self.job)]

    def request_end(self, limit_s: float = END_LIMIT_S) -> None:
        self.is_over = True

    def has_ended(self) -> bool:
        return True


class NightLearner:
    """
    See the module. `learner` is None while the process is away. `poisons` says of a round whether
    the labels of its dataset are shifted; `on_trained` hears of each policy.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        clock: NightClock,
        *,
        poisons: Callable[[], bool],
        on_trained: Callable[[str, bool], None],
        announced: Callable[[], list[RecordedEpisode]],
        canary: Callable[[], CanaryState | None],
    ) -> None:
        self.settings, self._clock = settings, clock
        self._poisons, self._on_trained = poisons, on_trained
        self._announced, self._canary = announced, canary
        self.learner: Learner | None = None
        self.memory: Memory | None = None
        self.step: NightStep | None = None
        self.is_disk_full = self.dies_publishing = self._is_poisoned = False
        self.log: list[str] = []
        self.failures: list[str] = []
        settings.folder.mkdir(parents=True)
        self.start()
        clock.every(TURN_S, self.turn)

    # LearnerListener

    def on_state(self, shown: LearnerState) -> None:
        """The state is read from the learner."""

    def on_version(self, version_id: str) -> None:
        """The store is read by who needs it."""

    def log_info(self, text: str) -> None:
        self.log.append(text)

    log_warning = log_info

    # the process

    def start(self) -> None:
        self.memory = Memory(self.settings.folder)
        self.learner = Learner(
            self.settings, self.memory, self._start_step, self, self._clock.monotonic_s
        )
        self.learner.begin()
        for episode in self._announced():
            self.on_recorded(episode)
        if latched := self._canary():
            self.on_canary(latched)

    def kill(self) -> None:
        """End as SIGKILL does: every step is gone, the memory is as it is."""
        if self.learner and self.memory:
            self.learner.requests.close()
            self.memory.close()
        self.learner = self.memory = self.step = None

    def stop(self) -> None:
        if self.learner:
            self.learner.end()
        self.learner = self.memory = self.step = None

    def turn(self) -> None:
        for _ in range(2):
            if self.learner:
                self.learner.turn()
            if (
                self.dies_publishing
                and (step := self.step)
                and not step.is_over
                and isinstance(step.job, PublishJob)
            ):
                self._die_publishing(step.job)

    # what it hears

    def on_recorded(self, episode: RecordedEpisode) -> None:
        if self.learner:
            self.learner.requests.put(episode)

    def on_canary(self, message: CanaryState) -> None:
        record = msgspec.convert(message, records.CanaryState, from_attributes=True)
        if self.learner and (news := canary_news(record)):
            self.learner.requests.put(news)

    # the steps

    def _start_step(self, job: Job, log: Path) -> NightStep:
        self.step = NightStep(job, self._clock, self._run)
        return self.step

    def _run(self, job: Job) -> Report:
        report = self._done(job)
        if isinstance(report, Failed):
            self.failures.append(report.text)
        return report

    def _done(self, job: Job) -> Report:
        if isinstance(job, StageJob):
            return StageDone(tuple(bag.sha256 for bag in job.bags))
        if isinstance(job, ConvertJob):
            return self._convert(job)
        if isinstance(job, PublishJob):
            return self._publish(job)
        done = result_of(job, Silent(), threading.Event())
        if isinstance(job, TrainJob) and not isinstance(done, Failed):
            self._on_trained(done.fingerprint, self._is_poisoned)
        return done

    def _convert(self, job: ConvertJob) -> ConvertDone:
        """Play a conversion: all bags are in the dataset, a few have rows."""
        self._is_poisoned = self._poisons()
        dataset = job.dataset
        shutil.rmtree(dataset, ignore_errors=True)
        count = min(len(job.bags), EPISODES_READ)
        write_dataset(dataset, [Episode(['person'] * ROWS_READ)] * count)
        # more bags give another dataset
        write_labels(dataset, shift=(SHIFT if self._is_poisoned else 0.0) + len(job.bags) * 1e-4)
        Path(self.settings.parameters.trainer).write_text(LONG if self._is_poisoned else SHORT)
        used = set(job.used)
        names = [(bag.client_id, bag.episode_id) for bag in job.bags]
        new = tuple(i for i, name in enumerate(names) if name not in used)
        return ConvertDone(
            tuple(bag.sha256 for bag in job.bags),
            tuple(i for i in new if i < count),
            len(names),
            folder_sha256(dataset),
            tuple(names[i] for i in new),
        )

    def _publish(self, job: PublishJob) -> Report:
        now: Callable[[], datetime] = self._clock.wall
        try:
            with files_of_at_most(DISK_FULL_BYTES) if self.is_disk_full else nullcontext():
                return publish_policy(job, lambda _: None, now)
        except OSError as error:
            return Failed(f'{error.filename}: {error.strerror}; make room')
        except Exception as error:
            return Failed(str(error))

    def _die_publishing(self, job: PublishJob) -> None:
        """Copy a part of the policy into the store and be killed, with the learner."""
        self.dies_publishing = False
        child = os.fork()
        if not child:
            try:
                publish_policy(job, lambda _: os.kill(os.getpid(), signal.SIGKILL))
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        self.kill()

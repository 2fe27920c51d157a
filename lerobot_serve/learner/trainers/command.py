# SPDX-License-Identifier: Apache-2.0
"""
Continue the training of a policy with a program, such as lerobot-train below torchrun.

The program writes below `work`; what it leaves at `result` is loaded, compared with its parent and
moved to `output`. No shell reads the words. All processes of the program end with this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
import json
import os
from pathlib import Path
import shutil
import threading
import time

from lerobot_serve.learner.trainers import guard
from lerobot_serve.learner.trainers.base import (
    Progress,
    TrainerError,
    TrainingJob,
    TrainingStopped,
)
from lerobot_serve.learner.trainers.contract import (
    Contract,
    ContractReader,
    differences,
    read_contract,
)
from lerobot_serve.learner.trainers.guarded_process import (
    GuardedProcess,
    KILLED_LIMIT_S,
    LogProgress,
    OutputLog,
)
from lerobot_serve.learner.trainers.output import new_policy_folder
from lerobot_serve.learner.trainers.recorded import INFO_FILE
from lerobot_serve.learner.trainers.trainer_file import CommandOptions, filled
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.registry import detect_kind

LOG_FILE, NEW_EPISODES_FILE, RUN_FOLDER = 'train.log', 'new_episodes.json', 'run'
POLL_S = 0.2
# the kinds whose folder is trained, not exported or asked over a network
TRAINABLE = ('lerobot', 'builtin')


class Cause(Enum):
    """Why the command ended."""

    BY_ITSELF = 'by itself'
    BUDGET = 'budget'
    STOP = 'stop'


class TrainingVerdict(Enum):
    """What a training that ended comes to."""

    POLICY = 'policy'
    STOPPED = 'stopped'
    FAILED = 'failed'
    NO_RESULT = 'no result'
    TOO_LATE = 'too late'


def verdict(cause: Cause, *, succeeded: bool, has_result: bool) -> TrainingVerdict:
    """
    Return what a training comes to. `succeeded`: its exit status was 0; `has_result`: something
    is at its place. What a command leaves whose budget ended is its last whole checkpoint. Pure.
    """
    if cause is Cause.STOP:
        return TrainingVerdict.STOPPED
    if cause is Cause.BUDGET:
        return TrainingVerdict.POLICY if has_result else TrainingVerdict.TOO_LATE
    if not succeeded:
        return TrainingVerdict.FAILED
    return TrainingVerdict.POLICY if has_result else TrainingVerdict.NO_RESULT


def ending_signal(since_s: float, end_s: float) -> bytes:
    """Return the signal for a command that was to end `since_s` ago: I, T, then K. Pure."""
    if since_s < end_s:
        return b'I'
    return b'T' if since_s < 2 * end_s else guard.KILL


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended: why, with which status, and its last line."""

    cause: Cause
    status: int
    last_line: str


class CommandTrainer:
    """See the module. One job at a time, in one thread."""

    def __init__(
        self,
        options: CommandOptions,
        clock: Callable[[], float] = time.monotonic,
        read: ContractReader = read_contract,
    ) -> None:
        self._options, self._clock, self._read = options, clock, read

    def check(self, parent: Path) -> None:
        """Raise TrainerError unless the program exists and the parent can be trained."""
        program = self._options.command[0]
        if '{' not in program and shutil.which(program) is None:
            raise TrainerError(
                f'the program {program!r} of the trainer is not found; install it, add its '
                'folder to PATH, or give its full path'
            )
        try:
            kind = detect_kind(str(parent))
        except PolicyError as error:
            raise TrainerError(f'the policy to continue from cannot be used: {error}') from None
        if kind not in TRAINABLE:
            raise TrainerError(
                f'{parent} is of the kind {kind}, which has no weights to train; serve the '
                'policy that it was exported from'
            )

    def train(
        self, job: TrainingJob, report: Callable[[Progress], None], stop: threading.Event
    ) -> Path:
        """See Trainer."""
        began_s = self._clock()

        def tick() -> None:
            if stop.is_set():
                raise TrainingStopped

        with new_policy_folder(job.output) as folder:
            values = self._values(job)
            parent = self._read(job.parent, job.dataset, tick)
            ended = self._run(job, values, report, stop, began_s + job.budget_s)
            result = Path(filled(self._options.result, values))
            self._require_policy(ended, result, job)
            self._check_result(parent, result, job, tick)
            _move(result, folder, job.dataset)
        return job.output

    def _values(self, job: TrainingJob) -> dict[str, str]:
        """Prepare the working folder; return the placeholders. Raises OSError."""
        work = job.work.absolute()
        run, new_episodes = work / RUN_FOLDER, work / NEW_EPISODES_FILE
        work.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(run, ignore_errors=True)
        new_episodes.write_text(json.dumps(sorted(job.new_episodes)) + '\n')
        return {
            'dataset': str(job.dataset.absolute()),
            'parent': str(job.parent.absolute()),
            'output': str(run),
            'work': str(work),
            'seed': str(job.seed),
            'budget_s': f'{job.budget_s:.0f}',
            'steps': str(self._options.steps),
            'new_episodes': str(new_episodes),
        }

    def _run(
        self,
        job: TrainingJob,
        values: dict[str, str],
        report: Callable[[Progress], None],
        stop: threading.Event,
        deadline_s: float,
    ) -> Ended:
        options = self._options
        words = [filled(word, values) for word in options.command]
        own = {name: filled(text, values) for name, text in options.environment.items()}
        progress = LogProgress(options.step_pattern, options.loss_pattern, options.steps)
        log = OutputLog(job.work / LOG_FILE)
        report(progress.progress())
        try:
            with GuardedProcess(
                words, folder=job.work, environment={**os.environ, **own}
            ) as process:
                ending = _Ending(process, stop, deadline_s, options.end_s)
                while (piece := process.read(POLL_S)) is not None:
                    now_s = self._clock()
                    # every line counts, also behind one with news
                    news = [progress.see(line, now_s) for line in log.add(piece)]
                    if any(news):
                        report(progress.progress())
                    if ending.update(now_s):
                        break
                status = process.exit_status()
        finally:
            log.close()
        return Ended(ending.cause, status, log.last_line)

    def _require_policy(self, ended: Ended, result: Path, job: TrainingJob) -> None:
        """Raise TrainingStopped or TrainerError unless the training comes to a policy."""
        found = verdict(ended.cause, succeeded=ended.status == 0, has_result=os.path.isdir(result))
        if found is TrainingVerdict.STOPPED:
            raise TrainingStopped
        log = job.work / LOG_FILE
        texts = {
            TrainingVerdict.FAILED: f'{self._options.command[0]} ended with exit status '
            f'{ended.status}: {ended.last_line or "it printed nothing"}; all of it is in {log}',
            TrainingVerdict.NO_RESULT: f'the training ended and left no folder {result}; correct '
            f'`result` in the trainer file; what it printed is in {log}',
            TrainingVerdict.TOO_LATE: f'the training was ended after its {job.budget_s:g} s, '
            f'before its first checkpoint {result}; give it more time, or let it save earlier or '
            f'take fewer steps; its last line: {ended.last_line or "none"}',
        }
        if found in texts:
            raise TrainerError(texts[found])

    def _check_result(
        self, parent: Contract, result: Path, job: TrainingJob, tick: Callable[[], None]
    ) -> None:
        changed = differences(parent, self._read(result, job.dataset, tick))
        if changed:
            raise TrainerError(
                f'the trained policy has another contract than {job.parent} '
                f'({"; ".join(changed)}), so that robots could not go on with it; train with the '
                'settings of the parent'
            )


class _Ending:
    """Ends a command on request, or past its deadline, with stronger signals one by one."""

    def __init__(
        self, process: GuardedProcess, stop: threading.Event, deadline_s: float, end_s: float
    ) -> None:
        self._process, self._stop = process, stop
        self._deadline_s, self._end_s = deadline_s, end_s
        self._began_s = 0.0
        self._sent = b''
        self.cause = Cause.BY_ITSELF

    def update(self, now_s: float) -> bool:
        """Send the signal that is due; return whether even SIGKILL has not ended it."""
        if self.cause is Cause.BY_ITSELF:
            is_late = now_s > self._deadline_s
            if not is_late and not self._stop.is_set():
                return False
            self._began_s = now_s
            self.cause = Cause.BUDGET
        if self._stop.is_set():
            self.cause = Cause.STOP
        since_s = now_s - self._began_s
        due = ending_signal(since_s, self._end_s)
        if due != self._sent:
            self._process.send(due)
            self._sent = due
        return since_s > 2 * self._end_s + KILLED_LIMIT_S


def _move(result: Path, folder: Path, dataset: Path) -> None:
    """
    Move what was trained into a folder. LeRobot's files have neither names nor a rate, and find
    them in the dataset; a copy beside the weights outlives it. Raises OSError.
    """
    # `last` is a link
    shutil.move(result.resolve(), folder)
    copy = folder / INFO_FILE
    if detect_kind(str(folder)) == 'lerobot' and not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(dataset / INFO_FILE, copy)

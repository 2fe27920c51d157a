# SPDX-License-Identifier: Apache-2.0
"""A learner with played steps and a clock, on a real folder, without processes and ROS."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import errno
from pathlib import Path

from lerobot_serve.contract.records import LearnerState, RecordedEpisode
from lerobot_serve.contract.types import Time
from lerobot_serve.experience.recorded_episode import OUTCOMES
from lerobot_serve.learner.memory import Memory
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.learner.rounds.learner import Learner
from lerobot_serve.learner.rounds.requests import Call, Command
from lerobot_serve.learner.rounds.settings import LearnerSettings
from lerobot_serve.learner.steps import (
    ConvertDone,
    ConvertJob,
    FoundEpisode,
    Job,
    PublishDone,
    PublishJob,
    RefusedBag,
    Report,
    ScanDone,
    ScanJob,
    StageDone,
    StageJob,
    TrainDone,
    TrainJob,
)
from lerobot_serve.learner.versions import CanaryNews, PolicyVerdict

HOST, PARENT = 'here', 'reach@00000000000000aa'


def episode(
    number: int, folder: Path, *, outcome: str = 'success', **fields: object
) -> RecordedEpisode:
    """Return an episode whose bag is a folder on the disk."""
    path = folder / f'bag_{number}'
    path.mkdir(parents=True, exist_ok=True)
    given = {
        'stamp': Time(number),
        'client_id': 'robot_1',
        'episode_id': f'e{number}',
        'outcome': RecordedEpisode.Outcome(OUTCOMES.index(outcome)),
        'control_steps': 10,
        'control_steps_person': 4,
        'policies': (PARENT,),
        'host': HOST,
        'path': str(path),
        'size_bytes': 100,
        'sha256': f'{number:064x}',
    }
    return RecordedEpisode(**{**given, **fields})


@dataclass(eq=False)
class PlayedStep:
    """A step whose reports a test gives; it ends when it is asked to, or `is_hanging`."""

    job: Job
    is_hanging: bool = False
    is_asked_to_end: bool = False
    reports: list[Report] = field(default_factory=list)

    def fileno(self) -> int:
        raise AssertionError('a played learner does not wait')

    has_more = False

    def poll(self) -> list[Report]:
        found, self.reports = self.reports, []
        return found

    def request_end(self, limit_s: float = 0.0) -> None:
        self.is_asked_to_end = True
        self.is_hanging &= limit_s == 0.0

    def has_ended(self) -> bool:
        return self.is_asked_to_end and not self.is_hanging


class LearnerRig:
    """`store` has a folder for each version; `found` are episodes that a search finds."""

    def __init__(self, folder: Path, **parameters: object) -> None:
        self.folder, self.now_s = folder, 1000.0
        self.settings = LearnerSettings(
            folder=folder / 'learner',
            store=folder / 'store',
            host=HOST,
            parent=folder / 'parent',
            parameters=replace(LearnerParameters(episodes_per_round=3, router=''), **parameters),
        )
        self.steps: list[PlayedStep] = []
        self.states: list[LearnerState] = []
        self.announced: list[str] = []
        self.log: list[str] = []
        self.found: list[RecordedEpisode] = []
        self.in_dataset: list[tuple[str, str]] = []
        self.staged: list[str] = []
        self.refused: dict[str, RefusedBag] = {}
        self.parent = PARENT
        self.trained = 0
        self.refuses_to_start = False
        (folder / 'learner').mkdir(parents=True, exist_ok=True)
        self.start()

    # LearnerListener

    def on_state(self, shown: LearnerState) -> None:
        self.states.append(shown)

    def on_version(self, version_id: str) -> None:
        self.announced.append(version_id)

    def log_info(self, text: str) -> None:
        self.log.append(text)

    log_warning = log_info

    def clock(self) -> float:
        return self.now_s

    # the process

    def start(self) -> None:
        self.memory = Memory(self.settings.folder)
        self.learner = Learner(self.settings, self.memory, self._start_step, self, self.clock)
        self.learner.begin()

    def set(self, **parameters: object) -> None:
        """Change parameters; those that are not live hold after a restart."""
        changed = replace(self.settings.parameters, **parameters)
        self.settings = replace(self.settings, parameters=changed)
        self.learner.live = changed

    def kill(self) -> None:
        """End without a word: what is in the memory stays, every step is gone."""
        self.learner.requests.close()
        self.memory.close()
        self.steps.clear()

    def restart(self) -> None:
        self.kill()
        self.start()

    def come_back(self) -> None:
        """Restart, and look for episodes."""
        self.restart()
        self.finish(ScanJob)

    def _start_step(self, job: Job, log: Path) -> PlayedStep:
        if self.refuses_to_start:
            raise OSError(errno.EAGAIN, 'no process can be started')
        alive = [step for step in self.steps if not step.has_ended()]
        assert not alive, f'{job} beside {alive}'
        self.steps.append(PlayedStep(job))
        return self.steps[-1]

    # what a test does

    @property
    def step(self) -> PlayedStep | None:
        """The step that runs."""
        running = [each for each in self.steps if not each.is_asked_to_end]
        return running[-1] if running else None

    @property
    def phase(self) -> str:
        return self.learner.shown.state.name

    @property
    def dropped(self) -> dict[str, int]:
        return {each.reason: each.count for each in self.learner.shown.dropped}

    def turn(self, count: int = 2) -> None:
        for _ in range(count):
            self.learner.turn()

    def announce(self, *numbers: int, **fields: object) -> None:
        for number in numbers:
            self.learner.requests.put(episode(number, self.folder / 'bags', **fields))
        self.turn()

    def ask(self, command: Command) -> tuple[bool, str]:
        call = Call(command)
        self.learner.requests.put(call)
        self.learner.turn()
        return call.answer.result(0)

    def reject(self, version_id: str) -> None:
        news = CanaryNews(PolicyVerdict.REJECTED, version_id, 'worse than the champion')
        self.learner.requests.put(news)
        self.turn()

    def accept(self, version_id: str) -> None:
        self.learner.requests.put(CanaryNews(PolicyVerdict.ACCEPTED, version_id, ''))
        self.turn()

    def serves(self, champion: str, watched: str = '') -> None:
        """Slot a serves a policy, maybe while a promoted one is watched."""
        verdict = PolicyVerdict.ACCEPTED if watched else PolicyVerdict.NONE
        self.learner.requests.put(CanaryNews(verdict, watched, '', champion))
        self.turn()

    def report(self, *reports: Report) -> None:
        assert self.step
        self.step.reports += reports
        self.turn()

    def finish(self, kind: type[Job] | None = None) -> Job:
        """End the running step with the result that a whole one has."""
        step = self.step
        assert step and (kind is None or isinstance(step.job, kind)), step
        self.report(*self.results(step.job))
        return step.job

    def results(self, job: Job) -> list[Report]:
        if isinstance(job, ScanJob):
            found = [FoundEpisode(each) for each in self.found]
            return [*found, ScanDone(self.parent, ())]
        if isinstance(job, StageJob):
            self.staged += [bag.episode_id for bag in job.bags]
            return [StageDone(tuple(bag.sha256 for bag in job.bags))]
        if isinstance(job, ConvertJob):
            return self._converted(job)
        if isinstance(job, TrainJob):
            self.trained += 1
            job.output.mkdir(parents=True)
            return [TrainDone(job.output, f'reach@{self.trained:016x}')]
        assert isinstance(job, PublishJob)
        folder = self.settings.store / job.fingerprint
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'version.json').write_text(job.parent)
        return [PublishDone(job.fingerprint)]

    def _converted(self, job: ConvertJob) -> list[Report]:
        refused = [self.refused[bag.sha256] for bag in job.bags if bag.sha256 in self.refused]
        whole = [bag for bag in job.bags if bag.sha256 not in self.refused]
        for bag in whole:
            if (bag.client_id, bag.episode_id) not in self.in_dataset:
                self.in_dataset.append((bag.client_id, bag.episode_id))
        new = tuple(name for name in self.in_dataset if name not in set(job.used))
        indices = tuple(map(self.in_dataset.index, new))
        hashes = tuple(bag.sha256 for bag in whole)
        return [*refused, ConvertDone(hashes, indices, len(self.in_dataset), 'd' * 64, new)]

    def round(self, *numbers: int) -> str:
        """Play a round on episodes that are announced; return its version."""
        self.announce(*numbers)
        return self.run_round()

    def run_round(self) -> str:
        """Play a round to its end; return its version."""
        for kind in (ScanJob, ConvertJob, TrainJob, PublishJob):
            self.finish(kind)
        assert self.phase == 'WAITING', self.learner.shown
        return self.learner.shown.latest

# SPDX-License-Identifier: Apache-2.0
"""
Random lives of a learner: episodes, requests, failures, kills and rolled-back versions in any
order, against what must hold at every moment.
"""

from __future__ import annotations

from pathlib import Path
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, RuleBasedStateMachine
from support.learner.learner_rig import LearnerRig, PARENT

from lerobot_serve.learner.rounds.requests import Command
from lerobot_serve.learner.rounds.states import LONGEST_RETRY_S
from lerobot_serve.learner.steps import (
    ConvertJob,
    Failed,
    PublishJob,
    ScanJob,
    StageJob,
    TrainJob,
)
from lerobot_serve.learner.versions import is_barred, lineage

STEP_OF_PHASE = {
    'CONVERTING': (ScanJob, ConvertJob),
    'TRAINING': (TrainJob,),
    'PUBLISHING': (PublishJob,),
}


class LearnerLife(RuleBasedStateMachine):
    """What a learner lives through."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix='learner_life_'))
        self.rig = LearnerRig(self.folder)
        self.rig.set(episodes_per_round=8)
        self.number = 0
        self.is_paused = False
        # version -> its parent was barred when it was published
        self.checked: set[str] = set()

    def teardown(self) -> None:
        self.rig.learner.end()
        shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 6), is_new=st.booleans())
    def announce(self, count: int, is_new: bool) -> None:
        numbers = range(self.number, self.number + count)
        self.number += count if is_new or not self.number else 0
        self.rig.announce(*numbers)
        self.number = max(self.number, numbers.stop)

    @rule()
    def turn(self) -> None:
        self.rig.turn(1)

    @rule()
    def finish(self) -> None:
        if self.rig.step:
            self.rig.finish()

    @rule()
    def finish_a_round(self) -> None:
        for _ in range(5):
            self.finish()

    @precondition(lambda self: self.rig.step is not None)
    @rule()
    def fail(self) -> None:
        self.rig.report(Failed('a step failed'))

    @rule()
    def killed_after_the_work_of_a_step(self) -> None:
        if self.rig.step:
            self.rig.results(self.rig.step.job)
        self.rig.restart()

    @rule(is_orderly=st.booleans())
    def restart(self, is_orderly: bool) -> None:
        if is_orderly:
            self.rig.learner.end()
            self.rig.steps.clear()
            self.rig.start()
        else:
            self.rig.restart()

    @rule()
    def ask(self) -> None:
        self.rig.ask(Command.START)

    @rule()
    def pause(self) -> None:
        assert self.rig.ask(Command.PAUSE)[0]
        self.is_paused = True

    @rule()
    def resume(self) -> None:
        assert self.rig.ask(Command.RESUME)[0]
        self.is_paused = False

    @rule(which=st.integers(0, 20))
    def reject(self, which: int) -> None:
        versions = [each.id for each in self.rig.memory.versions()]
        if versions:
            self.rig.reject(versions[which % len(versions)])

    @rule(which=st.integers(0, 20))
    def accept(self, which: int) -> None:
        versions = [each.id for each in self.rig.memory.versions()]
        if versions:
            self.rig.accept(versions[which % len(versions)])

    @rule(which=st.integers(0, 20), is_watched=st.booleans())
    def serve(self, which: int, is_watched: bool) -> None:
        """Slot a serves a version, or the parent; maybe while the newest one is watched."""
        policies = [PARENT, *(each.id for each in self.rig.memory.versions())]
        self.rig.serves(policies[which % len(policies)], policies[-1] if is_watched else '')

    @rule()
    def time_passes(self) -> None:
        self.rig.now_s += LONGEST_RETRY_S
        self.rig.turn(1)

    @rule(is_hanging=st.booleans())
    def hang(self, is_hanging: bool) -> None:
        if is_hanging and self.rig.step:
            self.rig.step.is_hanging = True
        for step in self.rig.steps:
            step.is_hanging &= is_hanging

    @invariant()
    def no_episode_is_new_twice_in_a_lineage(self) -> None:
        versions = self.rig.memory.versions()
        for version in versions:
            rounds = [each.round for each in lineage(version.id, versions)]
            used = [sha256 for each in rounds for sha256 in self.rig.memory.used_by([each])]
            assert len(used) == len(set(used))

    @invariant()
    def every_version_is_whole_and_ended_its_round(self) -> None:
        for version in self.rig.memory.versions():
            assert (self.rig.settings.store / version.id / 'version.json').is_file()
            assert self.rig.memory.used_by([version.round])
        rounds = [each.round for each in self.rig.memory.versions()]
        assert rounds == sorted(set(rounds))

    @invariant()
    def no_version_was_published_from_a_barred_parent(self) -> None:
        versions, rejected = self.rig.memory.versions(), self.rig.memory.rejected()
        running = self.rig.learner._record
        if self.rig.phase in STEP_OF_PHASE and running:
            assert not is_barred(running.parent, versions, rejected)
        assert not is_barred(self.rig.learner.shown.parent or PARENT, versions, rejected)

    @invariant()
    def the_step_is_that_of_the_state(self) -> None:
        step, phase = self.rig.step, self.rig.learner._phase.name
        if step and phase in STEP_OF_PHASE:
            assert isinstance(step.job, STEP_OF_PHASE[phase])
        elif step:
            # the search at start, or a conversion ahead of a round
            assert isinstance(step.job, ScanJob | StageJob)
            assert isinstance(step.job, StageJob) == self.rig.learner._is_staging

    @invariant()
    def no_episode_is_staged_twice(self) -> None:
        given = [
            bag.sha256
            for step in self.rig.steps
            if isinstance(step.job, StageJob)
            for bag in step.job.bags
        ]
        assert len(given) == len(set(given))

    @invariant()
    def a_pause_holds(self) -> None:
        assert self.rig.memory.is_paused == self.is_paused
        if self.is_paused and self.rig.learner._steps.is_idle:
            self.rig.turn(1)
            assert self.rig.phase == 'PAUSED'

    @invariant()
    def at_most_one_round_is_open(self) -> None:
        rows = self.rig.memory.rows("SELECT number FROM rounds WHERE end = ''")
        assert len(rows) <= 1


LearnerLife.TestCase.settings = settings(
    deadline=None, derandomize=True, max_examples=40, stateful_step_count=40
)
TestLearnerLife = LearnerLife.TestCase

# SPDX-License-Identifier: Apache-2.0
"""The stages of a loop, as its output and the topics of its nodes show them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
import re

from lerobot_serve.contract.records import CanaryState, LearnerState

Learner, Canary = LearnerState.State, CanaryState.State
# what the conductor prints before it runs a verb, and after it
STEP = re.compile(r'loop: (gate|start|finish) \S+@\S+: lerobot-serve ')
RESULT = re.compile(
    r'loop: (gate (admitted|refused|held|too few)|rollout started|finished|\w+ failed'
    r'|loop started)'
)


class LoopStage(Enum):
    """What is going on; the value is how long it lasts at most, from its begin [s]."""

    GATHERING = 'gathering'
    CONVERTING = 'converting'
    TRAINING = 'training'
    PUBLISHING = 'publishing'
    GATING = 'gating'
    STARTING = 'starting'
    TRIAL = 'trial'
    WATCH = 'watch'
    FINISHING = 'finishing'


# about how long each lasts on a busy machine [s]: a kill comes within it, from its begin
LONGEST_S: dict[LoopStage, float] = {
    LoopStage.GATHERING: 3.0,
    LoopStage.CONVERTING: 6.0,
    LoopStage.TRAINING: 2.0,
    LoopStage.PUBLISHING: 0.5,
    LoopStage.GATING: 6.0,
    LoopStage.STARTING: 4.0,
    LoopStage.TRIAL: 6.0,
    LoopStage.WATCH: 2.0,
    LoopStage.FINISHING: 4.0,
}
LEARNER_STAGES: dict[int, LoopStage] = {
    Learner.CONVERTING: LoopStage.CONVERTING,
    Learner.TRAINING: LoopStage.TRAINING,
    Learner.PUBLISHING: LoopStage.PUBLISHING,
}
CANARY_STAGES: dict[int, LoopStage] = {
    Canary.RUNNING: LoopStage.TRIAL,
    Canary.UNDECIDED: LoopStage.TRIAL,
    Canary.PROMOTED: LoopStage.WATCH,
}
VERBS = {
    'gate': LoopStage.GATING,
    'start': LoopStage.STARTING,
    'finish': LoopStage.FINISHING,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The states of learner and canary, and the verb that the conductor runs; empty for none."""

    learner: int = 0
    canary: int = 0
    verb: str = ''


def stages_of(seen: Seen) -> set[LoopStage]:
    """Return the stages that go on: a learner trains while the version before it is on trial."""
    of_rollout = VERBS[seen.verb] if seen.verb else CANARY_STAGES.get(seen.canary)
    found = {stage for stage in (LEARNER_STAGES.get(seen.learner), of_rollout) if stage}
    is_gathering = seen.learner == Learner.WAITING and seen.canary != Canary.WAITING
    return found or ({LoopStage.GATHERING} if is_gathering else set())


class VerbFollower:
    """Follows what a fleet prints; `verb` is the one that its conductor runs, empty for none."""

    def __init__(self) -> None:
        self.verb, self._cut = '', ''

    def add(self, text: str) -> None:
        """Read a piece of the output, which may end within a line."""
        *lines, self._cut = (self._cut + text).split('\n')
        for line in lines:
            if found := STEP.search(line):
                self.verb = found[1]
            elif RESULT.search(line):
                self.verb = ''

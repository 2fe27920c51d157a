# SPDX-License-Identifier: Apache-2.0
"""Why something is a highlight, and when its bag begins and ends: a table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EdgeState, EpisodeOutcome, ExecutedAction
from lerobot_serve.tools.bags.message import BagMessage, DIVERGENCE, OUTCOME
from lerobot_serve.tools.recorder.strategies.robot_reports import read_report


class HighlightPhase(Enum):
    """Whether a highlight of a robot is being written."""

    WATCHING = 'watching'
    WRITING = 'writing'


class HighlightEvent(Enum):
    """What happens to it."""

    TRIGGER = 'trigger'
    # the time after the last trigger is over
    TIME_OVER = 'time over'


class Act(Enum):
    """What to do."""

    NOTHING = 'nothing'
    BEGIN = 'begin'
    EXTEND = 'extend'
    END = 'end'


W, R = HighlightPhase.WATCHING, HighlightPhase.WRITING
NEXT: dict[HighlightPhase, dict[HighlightEvent, tuple[HighlightPhase, Act]]] = {
    W: {HighlightEvent.TRIGGER: (R, Act.BEGIN), HighlightEvent.TIME_OVER: (W, Act.NOTHING)},
    R: {HighlightEvent.TRIGGER: (R, Act.EXTEND), HighlightEvent.TIME_OVER: (W, Act.END)},
}


@dataclass(slots=True)
class Triggers:
    """
    Finds what is a highlight in the messages of one robot. A condition that lasts is one trigger:
    its begin. `divergence_limit` 0: the divergence is none.
    """

    divergence_limit: float = 0.0
    tripped: bool = False
    stalled: bool = False
    stalls: int | None = None
    person_acts: bool = False
    taken_over: bool = False

    def find(self, message: BagMessage) -> str:
        """Return the reason, empty for an ordinary message."""
        report = read_report(message)
        if isinstance(report, ExecutedAction):
            return self._in_action(report)
        if isinstance(report, EdgeState):
            return self._in_state(report)
        try:
            if message.type == OUTCOME:
                has_failed = message.record().outcome == EpisodeOutcome.Outcome.FAILURE
                return 'failure' if has_failed else ''
            if message.type == DIVERGENCE and self.divergence_limit > 0:
                is_far = message.record().divergence > self.divergence_limit
                return 'divergence' if is_far else ''
        except Malformed:
            pass
        return ''

    def _in_action(self, action: ExecutedAction) -> str:
        was_tripped, self.tripped = self.tripped, bool(action.cage_result)
        if self.tripped and not was_tripped:
            return 'cage_trip'
        acted, self.person_acts = self.person_acts, action.source == ExecutedAction.Source.PERSON
        return 'takeover' if self.person_acts and not acted else ''

    def _in_state(self, state: EdgeState) -> str:
        was_stalled, self.stalled = self.stalled, state.state == EdgeState.State.STALLED
        before, self.stalls = self.stalls, state.stalls
        # a short stall is over before the next state
        if (self.stalled and not was_stalled) or (before is not None and state.stalls > before):
            return 'stall'
        was_taken, self.taken_over = self.taken_over, bool(state.intervention)
        return 'takeover' if self.taken_over and not was_taken else ''

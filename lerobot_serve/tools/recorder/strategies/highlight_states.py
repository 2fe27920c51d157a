# SPDX-License-Identifier: Apache-2.0
"""Why something is a highlight, and when its bag begins and ends: a table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lerobot_serve.experience.episode_facts import PERSON
from lerobot_serve.tools.bags.fleet_decoding import (
    decode_divergence,
    decode_outcome,
    DIVERGENCE_TYPE,
    OUTCOME_TYPE,
)
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.message_decoding import EdgeState, ExecutedAction
from lerobot_serve.tools.recorder.strategies.robot_reports import read_report
from lerobot_serve.wire.errors import Malformed


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
            if message.type == OUTCOME_TYPE:
                return 'failure' if decode_outcome(message.data).outcome == 'failure' else ''
            if message.type == DIVERGENCE_TYPE and self.divergence_limit > 0:
                divergence = decode_divergence(message.data).divergence
                return 'divergence' if divergence > self.divergence_limit else ''
        except Malformed:
            pass
        return ''

    def _in_action(self, action: ExecutedAction) -> str:
        was_tripped, self.tripped = self.tripped, action.cage_result != 'pass'
        if self.tripped and not was_tripped:
            return 'cage_trip'
        acted, self.person_acts = self.person_acts, action.source == PERSON
        return 'takeover' if self.person_acts and not acted else ''

    def _in_state(self, state: EdgeState) -> str:
        was_stalled, self.stalled = self.stalled, state.state == 'stalled'
        before, self.stalls = self.stalls, state.stalls
        # a short stall is over before the next state
        if (self.stalled and not was_stalled) or (before is not None and state.stalls > before):
            return 'stall'
        was_taken, self.taken_over = self.taken_over, state.intervention != 'none'
        return 'takeover' if self.taken_over and not was_taken else ''

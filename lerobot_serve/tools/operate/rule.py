# SPDX-License-Identifier: Apache-2.0
"""A rule of a verb of an operator: what it does in one state. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Verb(Enum):
    """A verb of `lerobot-serve rollout` that changes something."""

    START = 'start'
    PAUSE = 'pause'
    RESUME = 'resume'
    PROMOTE = 'promote'
    ABORT = 'abort'
    UNDO = 'undo'
    STOP = 'stop'
    FINISH = 'finish'


class SlotVerb(Enum):
    """A verb on one slot; `LIFT` is `rollout resume` without a plan."""

    DRAIN = 'drain'
    RESTORE = 'restore'
    LIFT = 'lift'


class RobotVerb(Enum):
    """A verb of `lerobot-serve robot`; the value is also the command, with _ the service."""

    PAUSE = 'pause'
    RESUME = 'resume'
    RESET = 'reset'
    RESET_CAGE = 'reset-cage'
    TAKE_OVER = 'take-over'
    HAND_BACK = 'hand-back'

    @property
    def service(self) -> str:
        return self.value.replace('-', '_')


class Effect(Enum):
    """Whether a verb does something in a state, has nothing to do, or is refused."""

    DO = 'do'
    NOTHING = 'nothing'
    REFUSE = 'refuse'


@dataclass(frozen=True, slots=True)
class Rule:
    """
    What a verb does in a state.

    text          the sentence for the operator; names in {} are replaced by values of the state
    command       constant of ControlSlot; empty for verbs that change parameters
    wanted        names of the states that confirm it; empty: the reply confirms it
    asks          whether it moves episodes or a robot, so that the operator is asked
    step          of a promotion: the step that the rollout must still be at, else it is refused
    """

    effect: Effect
    text: str
    command: str = ''
    wanted: tuple[str, ...] = ()
    asks: bool = False
    step: int | None = None


def refuse(text: str) -> Rule:
    """Return the rule of a verb that makes no sense in a state."""
    return Rule(Effect.REFUSE, text)


def nothing(text: str) -> Rule:
    """Return the rule of a verb that has nothing to do in a state."""
    return Rule(Effect.NOTHING, text)


def changed_text(shown: str, now: str) -> str:
    """Return the refusal of a verb whose text is not the one that was shown; empty if it is."""
    if shown == now:
        return ''
    return f'the state has changed; now it would: {now}. Nothing was changed; look again'


def filled(rule: Rule, **values: object) -> Rule:
    """Return a rule with its text filled in."""
    return replace(rule, text=rule.text.format(**values))

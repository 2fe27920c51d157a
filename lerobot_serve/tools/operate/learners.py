# SPDX-License-Identifier: Apache-2.0
"""
A learner with its state, as an operator reads it: lines of text, JSON and changes, with numbers
that are safe to print.

When a learner counts as silent: one table. Pure; any thread.

  states received   condition                               hearing
  none              found less than SILENT_S ago            EXPECTED
  none              found before                            MUTE
  one, latched      fresh by the clocks of both machines    HEARD
  one, latched      old, and arrived within NEW_STATE_S     EXPECTED
  one, latched      old, and arrived before                 SILENT
  several           the last one within SILENT_S            HEARD
  several           the last one before                     SILENT

A first, latched state may be of a learner that hangs, or of a machine whose clock is off: a new
one decides, since a learner publishes its state once a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
import math
from typing import Any, NamedTuple

from lerobot_serve.contract.records import LearnerState
from lerobot_serve.learner.rounds.states import Phase, RUNNING
from lerobot_serve.tools.operate.fleet_state import age_text, shown
from lerobot_serve.tools.output.report import Facts, Part
from lerobot_serve.tools.output.text import without_controls

LEARNER_PHASES = tuple(phase.name for phase in Phase)
RUNNING_PHASES = tuple(phase.name for phase in RUNNING)
# of a learner that is found and whose state does not arrive
NO_STATE = 'UNKNOWN'
# a longer time left is not an estimate [s]
REMAINING_LIMIT_S = 366 * 86400.0


# of a learner whose state does not arrive
NOT_HEARD = LearnerState(progress=math.nan, loss=math.nan, remaining_s=math.nan)


@dataclass(frozen=True, slots=True)
class LearnerView:
    """
    A learner with its last state. `silent_s` is how long a silent one has sent no state; None
    while it sends.
    """

    node: str
    state: LearnerState = NOT_HEARD
    silent_s: float | None = None

    @property
    def phase(self) -> str:
        """One of LEARNER_PHASES, NO_STATE, or a phase of a newer learner."""
        return NO_STATE if self.state is NOT_HEARD else self.state.state.name

    @property
    def progress(self) -> float | None:
        """The share of the running phase that is done; None if unknown, as the next two."""
        share = self.state.progress
        return min(1.0, max(0.0, share)) if math.isfinite(share) else None

    @property
    def loss(self) -> float | None:
        return self.state.loss if math.isfinite(self.state.loss) else None

    @property
    def remaining_s(self) -> float | None:
        left_s = self.state.remaining_s
        return left_s if 0 <= left_s <= REMAINING_LIMIT_S else None

    @property
    def has_diverged(self) -> bool:
        return math.isinf(self.state.loss)

    @property
    def is_silent(self) -> bool:
        return self.silent_s is not None

    @property
    def is_running(self) -> bool:
        """Whether a round runs, by the newest state."""
        return self.phase in RUNNING_PHASES and not self.is_silent


SILENT_S, NEW_STATE_S = 3.0, 1.5


class Hearing(Enum):
    """Whether a learner is heard of; EXPECTED: a state may still arrive."""

    EXPECTED = 'expected'
    HEARD = 'heard'
    SILENT = 'silent'
    MUTE = 'mute'


class Arrivals(NamedTuple):
    """
    The states of a learner that have arrived: how many, when the last one did [s ago], and its age
    [s], which for the first one is that of its stamp. `found_s`: since when the learner is found.
    """

    found_s: float
    states: int = 0
    arrived_s: float = 0.0
    age_s: float = 0.0


def hearing(arrivals: Arrivals) -> tuple[Hearing, float | None]:
    """
    Return whether a learner is heard of, see the module, and how long a silent or mute one has
    sent no state.
    """
    if arrivals.states == 0:
        is_new = arrivals.found_s < SILENT_S
        return (Hearing.EXPECTED, None) if is_new else (Hearing.MUTE, arrivals.found_s)
    # a stamp of the future is of a clock that is off
    if abs(arrivals.age_s) <= SILENT_S:
        return Hearing.HEARD, None
    # only the first state can be older than its arrival
    if arrivals.arrived_s < NEW_STATE_S:
        return Hearing.EXPECTED, None
    # by the clocks of two machines it cannot be shorter than what was waited for
    return Hearing.SILENT, max(arrivals.age_s, arrivals.arrived_s)


BAR_WIDTH = 30
# a line without a terminal for each tenth of a phase
TENTHS = 10
HOUR_S, MINUTE_S = 3600, 60
PHASE_WORDS = {
    'WAITING': 'waiting',
    'CONVERTING': 'converting episodes',
    'TRAINING': 'training',
    'PUBLISHING': 'publishing',
    'PAUSED': 'paused',
    NO_STATE: 'no state received',
}
# of LearnerState, in the order of JSON
FIELDS = (*('text', 'round', 'parent', 'latest', 'episodes', 'episodes_new', 'episodes_wanted'),)
# what is measured, which is old when a learner is silent
MEASURED = ('progress', 'loss', 'remaining_s')
WHY_SILENT = 'it ended, hangs, or its link is cut'


def learners_json(learners: Iterable[LearnerView]) -> list[dict[str, Any]]:
    """Return the learners as JSON objects; what is measured is null of a silent one."""
    return [_object(learner) for learner in learners]


def _object(learner: LearnerView) -> dict[str, Any]:
    found: dict[str, Any] = {
        'node': learner.node,
        'phase': learner.phase,
        **shown(learner.state, *FIELDS),
        'progress': learner.progress,
        'loss': learner.loss,
        'has_diverged': learner.has_diverged,
        'remaining_s': learner.remaining_s,
        'dropped': {drop.reason: drop.count for drop in learner.state.dropped},
        'silent_s': learner.silent_s,
    }
    return found | dict.fromkeys(MEASURED) if learner.is_silent else found


def learner_parts(learners: Iterable[LearnerView]) -> Iterator[Part]:
    """Yield the learners for people; names and texts may come from anywhere."""
    for learner in learners:
        yield f'{learner.node}: {heading(learner)}'
        if learner.phase != NO_STATE:
            yield Facts(list(_facts(learner)))
            if learner.state.text:
                yield f'  {learner.state.text}'


def _facts(learner: LearnerView) -> Iterator[tuple[str, str]]:
    state = learner.state
    if learner.is_running:
        yield 'progress', progress_text(learner)
    yield (
        'episodes',
        f'{state.episodes_new} of {state.episodes_wanted} new, {state.episodes} in all',
    )
    yield 'parent', state.parent or 'none'
    yield 'published', state.latest or 'none yet'
    if state.dropped:
        yield 'dropped', ', '.join(f'{drop.count} {drop.reason}' for drop in state.dropped)


def heading(learner: LearnerView) -> str:
    """Return phase and round in words, and since when a silent one sends nothing."""
    words = PHASE_WORDS.get(learner.phase, learner.phase)
    if learner.state.round:
        which = 'round' if learner.phase in RUNNING_PHASES else 'last round'
        words = f'{words}, {which} {learner.state.round}'
    if learner.silent_s is None:
        return words
    last = '' if learner.phase == NO_STATE else f'; last state: {words}'
    return f'silent for {age_text(learner.silent_s)}: {WHY_SILENT}{last}'


def progress_text(learner: LearnerView) -> str:
    """Return progress, loss and time left of the running phase."""
    if learner.progress is None:
        share = 'not known yet'
    else:
        filled = round(BAR_WIDTH * learner.progress)
        bar = '#' * filled + '-' * (BAR_WIDTH - filled)
        share = f'[{bar}] {_percent(learner.progress)}'
    return ', '.join([share, *_measured(learner)])


def _measured(learner: LearnerView) -> list[str]:
    found = []
    if learner.has_diverged:
        found.append('loss is infinite')
    elif learner.loss is not None:
        found.append(f'loss {learner.loss:.4g}')
    if learner.remaining_s is not None:
        found.append(f'about {time_text(learner.remaining_s)} left')
    return found


def _percent(share: float) -> str:
    # 100 % is the end
    return f'{min(99, int(100 * share)) if share < 1 else 100} %'


def time_text(seconds: float) -> str:
    """Return a time left: seconds below two minutes, then minutes, then hours and minutes."""
    if seconds < 2 * MINUTE_S:
        return f'{seconds:.0f} s'
    minutes = round(seconds / MINUTE_S)
    if minutes < 2 * HOUR_S / MINUTE_S:
        return f'{minutes} min'
    return f'{minutes // 60} h {minutes % 60} min'


def changes(before: Sequence[LearnerView], after: Sequence[LearnerView]) -> list[str]:
    """
    Return what differs between two looks at the learners, one line each: a new learner, phase,
    round, versions, silence, and each tenth of a phase. Counts of episodes are left out.
    """
    known = {learner.node: learner for learner in before}
    lines = [_change(known.get(learner.node), learner) for learner in after]
    return [without_controls(line) for line in lines if line]


def _change(old: LearnerView | None, new: LearnerView) -> str:
    if old is not None and _mark(old) == _mark(new):
        return ''
    again = 'heard of again, ' if old is not None and old.is_silent and not new.is_silent else ''
    parts = [f'{again}{heading(new)}']
    if new.is_running and new.progress is not None:
        parts += [_percent(new.progress), *_measured(new)]
    line = f'{new.node}: {", ".join(parts)}'
    if old is not None and new.state.latest not in ('', old.state.latest):
        line += f'; published {new.state.latest}'
    return line if new.is_silent or not new.state.text else f'{line}. {new.state.text}'


def _mark(learner: LearnerView) -> tuple[object, ...]:
    """Return what makes a line when it changes."""
    share = learner.progress if learner.is_running else None
    tenth = None if share is None else int(TENTHS * share)
    values = (learner.phase, learner.state.round, learner.state.parent, learner.state.latest)
    return (*values, learner.is_silent, tenth)

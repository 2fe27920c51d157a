# SPDX-License-Identifier: Apache-2.0
"""When a round begins, and each state of a learner with each event."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.learner.rounds.states import (
    due_event,
    Facts,
    FIRST_RETRY_S,
    has_to_stage,
    ImpossibleEvent,
    LONGEST_RETRY_S,
    next_phase,
    Phase,
    retry_delay_s,
    RoundEvent,
    TRANSITIONS,
    Unfinished,
)

FLAGS = (False, True)
EVERY = [
    Facts(*values) for values in product(FLAGS, FLAGS, Unfinished, FLAGS, FLAGS, FLAGS, FLAGS)
]


def reasons(facts: Facts) -> list[RoundEvent]:
    """Return why a round would begin, the strongest first."""
    found = []
    if facts.unfinished is Unfinished.TRAINED:
        found.append(RoundEvent.TRAINED_BEFORE)
    if facts.is_asked:
        found.append(RoundEvent.ASKED)
    if facts.unfinished is Unfinished.BEGUN:
        found.append(RoundEvent.UNFINISHED)
    if facts.has_enough:
        found.append(RoundEvent.EPISODES)
    if facts.is_scheduled:
        found.append(RoundEvent.SCHEDULE)
    if facts.has_to_stage:
        found.append(RoundEvent.STAGE)
    return found


@pytest.mark.parametrize('facts', EVERY)
def test_the_strongest_reason_counts(facts):
    if facts.is_paused:
        expected = RoundEvent.PAUSE
    elif not facts.may_retry and not facts.is_asked:
        expected = None
    else:
        expected = next(iter(reasons(facts)), None)
    assert due_event(facts) is expected


def test_the_time_after_failed_rounds_grows_to_a_bound():
    delays = [retry_delay_s(failures) for failures in range(100)]
    assert delays[:4] == [0.0, FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_RETRY_S


@pytest.mark.parametrize(
    ('wanted', 'first', 'last'),
    [(10, 5, 5), (20, 5, 15), (26, 6, 20), (50, 10, 40), (60, 12, 48), (1000, 200, 800)],
)
def test_a_fifth_of_a_round_is_converted_at_once_unless_the_round_begins_soon(wanted, first, last):
    def begins_at(new: int, unstaged: int) -> bool:
        return has_to_stage(unstaged=unstaged, new=new, wanted=wanted)

    begins = [new for new in range(wanted + 1) if begins_at(new, new)]
    assert (begins[0], begins[-1]) == (first, last)
    # of those that came since the last conversion
    assert not begins_at(last, first - 1) and begins_at(last, first)


@pytest.mark.parametrize('wanted', range(10))
def test_a_small_round_converts_all_of_its_episodes_itself(wanted):
    assert not any(has_to_stage(unstaged=new, new=new, wanted=wanted) for new in range(20))


# rows are states in the order of Phase, columns events in the order of RoundEvent; W C T P and Z
# for PAUSED, a dot for impossible
EXPECTED = """
WAITING     C C C C P W . . . . . W Z W
CONVERTING  . . . . . . W T . . W C Z C
TRAINING    . . . . . . . . P . W C Z T
PUBLISHING  . . . . . . . . . W W C P P
PAUSED      . . . . . . . . . . . Z Z W
"""
LETTERS = {
    'W': Phase.WAITING,
    'C': Phase.CONVERTING,
    'T': Phase.TRAINING,
    'P': Phase.PUBLISHING,
    'Z': Phase.PAUSED,
}
CELLS = [
    (Phase[name], event, letter)
    for name, *row in (line.split() for line in EXPECTED.strip().splitlines())
    for event, letter in zip(RoundEvent, row, strict=True)
]


@pytest.mark.parametrize(('phase', 'event', 'letter'), CELLS)
def test_each_cell(phase, event, letter):
    if letter == '.':
        with pytest.raises(ImpossibleEvent, match=f'{event.name} in {phase.name}'):
            next_phase(phase, event)
    else:
        assert next_phase(phase, event) is LETTERS[letter]


def test_every_combination_is_named():
    assert len(CELLS) == len(Phase) * len(RoundEvent)
    assert {(phase, event) for phase, event, letter in CELLS if letter != '.'} == set(TRANSITIONS)


def test_a_pause_never_leads_to_a_round_and_every_round_can_end():
    assert not [
        (phase, event)
        for (phase, event), after in TRANSITIONS.items()
        if phase is Phase.PAUSED and after not in (Phase.PAUSED, Phase.WAITING)
    ]
    for phase in (Phase.CONVERTING, Phase.TRAINING, Phase.PUBLISHING):
        assert TRANSITIONS[phase, RoundEvent.FAILED] is Phase.WAITING

# SPDX-License-Identifier: Apache-2.0
"""Each state with each event; nothing else than the table decides."""

from __future__ import annotations

import pytest

from lerobot_serve.learner.rounds.states import (
    ImpossibleEvent,
    next_phase,
    Phase,
    RoundEvent,
    TRANSITIONS,
)

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

# SPDX-License-Identifier: Apache-2.0
"""When a learner counts as silent: each row of the table, at both sides of its bound."""

from __future__ import annotations

import pytest

from lerobot_serve.tools.operate.learners.learner_state import (
    Arrivals,
    Hearing,
    hearing,
    NEW_STATE_S,
    SILENT_S,
)

OLD_S = 60.0
ROWS = [
    # found, states, arrived, age -> hearing, silent for
    (Arrivals(0.0), Hearing.EXPECTED, None),
    (Arrivals(SILENT_S - 0.1), Hearing.EXPECTED, None),
    (Arrivals(SILENT_S), Hearing.MUTE, SILENT_S),
    (Arrivals(9.0, 1, 0.1, 0.0), Hearing.HEARD, None),
    (Arrivals(9.0, 1, 0.1, SILENT_S), Hearing.HEARD, None),
    (Arrivals(9.0, 1, NEW_STATE_S - 0.1, OLD_S), Hearing.EXPECTED, None),
    (Arrivals(9.0, 1, NEW_STATE_S, OLD_S), Hearing.SILENT, OLD_S),
    # a clock of the future: the age is what was waited
    (Arrivals(9.0, 1, NEW_STATE_S - 0.1, -OLD_S), Hearing.EXPECTED, None),
    (Arrivals(9.0, 1, 5.0, -OLD_S), Hearing.SILENT, 5.0),
    (Arrivals(9.0, 2, SILENT_S, SILENT_S), Hearing.HEARD, None),
    (Arrivals(9.0, 2, SILENT_S + 0.1, SILENT_S + 0.1), Hearing.SILENT, SILENT_S + 0.1),
]


@pytest.mark.parametrize(('arrivals', 'found', 'silent_s'), ROWS)
def test_a_learner_is_silent_by_the_table(arrivals, found, silent_s):
    assert hearing(arrivals) == (found, silent_s)


def test_the_rows_have_every_hearing():
    assert {found for _, found, _ in ROWS} == {*Hearing}

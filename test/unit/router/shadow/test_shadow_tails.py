# SPDX-License-Identifier: Apache-2.0
"""What a robot was commanded right before: only what nothing is missing behind."""

from __future__ import annotations

import numpy as np
import pytest
from support.router.shadow_rig import key, ramp, run, start, told

from lerobot_serve.contract.data_path.execution_report import ExecutedRun
from lerobot_serve.router.shadow.command_tails import CommandTails


def befores(
    tails: CommandTails, seq: int, *runs: ExecutedRun, **fields: object
) -> list[list[float]]:
    """Let a robot report, and return the first action before each run."""
    session_epoch = fields.pop('session_epoch', 7)
    begin = start(key(seq, session_epoch=session_epoch))
    found = tails.follow(begin, told(*runs, **fields))
    assert [one for one, _ in found] == list(runs)
    return [before[:, 0].tolist() if before.size else [] for _, before in found]


def one(first: float = 0.0, rows: int = 3, **fields: object) -> ExecutedRun:
    return run(key(), 0, ramp(first, 1.0, rows), **fields)


def test_the_last_two_rows_come_before_the_next_run():
    tails = CommandTails(9)
    assert befores(tails, 1, one(0), one(10)) == [[], [1.0, 2.0]]
    assert befores(tails, 2, one(20)) == [[11.0, 12.0]]
    # a request between two rows
    assert befores(tails, 3) == []
    assert befores(tails, 4, one(30)) == [[21.0, 22.0]]


def test_a_single_row_is_added_to_the_one_before_it():
    tails = CommandTails(9)
    assert befores(tails, 1, one(0, 1), one(10, 1), one(20, 1), one(30)) == [
        [],
        [0.0],
        [0.0, 10.0],
        [10.0, 20.0],
    ]


def test_behind_a_pause_nothing_is_known():
    tails = CommandTails(9)
    befores(tails, 1, one(0))
    assert befores(tails, 2, one(10, after_pause=True), one(20, 1)) == [[], [11.0, 12.0]]
    assert befores(tails, 3, one(30, 1, after_pause=True), one(40)) == [[], [30.0]]


@pytest.mark.parametrize(
    'fields',
    [
        {'seq': 3},
        {'seq': 1},
        {'seq': 2, 'session_epoch': 8},
        {'seq': 2, 'dropped_rows': 4},
    ],
    ids=['a request was lost', 'told twice', 'another session', 'rows were dropped'],
)
def test_behind_what_was_not_told_nothing_is_known(fields):
    tails = CommandTails(9)
    befores(tails, 1, one(0))
    assert befores(tails, fields.pop('seq'), one(10), one(20), **fields) == [[], [11.0, 12.0]]


def test_robots_are_told_apart_and_the_one_unheard_for_longest_is_forgotten():
    tails = CommandTails(2)
    for name, first in (('a', 0.0), ('b', 10.0), ('a', 20.0), ('c', 30.0)):
        tails.follow(start(key(1, name)), told(one(first)))
    assert len(tails) == 2
    for name, known in (('a', True), ('b', False)):
        ((_, before),) = tails.follow(start(key(2, name)), told(one()))
        assert bool(before.size) == known


def test_a_robot_that_changes_its_actions_has_no_row_before():
    tails = CommandTails(9)
    befores(tails, 1, one(0, 1))
    wide = run(key(), 0, np.zeros((1, 5)))
    found = tails.follow(start(key(2)), told(wide, one(20)))
    assert [before.shape for _, before in found] == [(1, 2), (1, 5)]


def test_no_message_is_kept_in_memory_for_it():
    tails, rows = CommandTails(9), ramp(0.0, 1.0, 200)
    befores(tails, 1, run(key(), 0, rows))
    ((_, before),) = tails.follow(start(key(2)), told(one()))
    assert before.base is None or before.base.size == 4

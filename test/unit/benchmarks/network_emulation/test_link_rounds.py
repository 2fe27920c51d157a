# SPDX-License-Identifier: Apache-2.0
"""Turns over a slow link: who continues, what is added up, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from benchmarks.network_emulation import comparison, rounds
from benchmarks.network_emulation.comparison import (
    DEFAULT,
    describe,
    ENCODINGS,
    TOO_OLD_MS,
    ZENOH,
    ZENOH_DOWNSCALED,
    ZENOH_RAW,
)
from benchmarks.network_emulation.rounds import (
    Contender,
    ContenderResult,
    MAX_LOST_IN_A_ROW,
    run_rounds,
)
from benchmarks.peers.comparison import LEROBOT, OPENPI
from benchmarks.peers.peer_process import ImageSet

SIZE = ImageSet(2, 480, 640)
NOTHING = {'up': {}, 'down': {}}


class CountingLink:
    """Stands in for a link on which each trip sends ten packets up and one down."""

    def __init__(self) -> None:
        self.trips = self.settled = 0

    def counts(self):
        up = {'offered': 10, 'offered_bytes': 15_000, 'queue_full': 2, 'late': 1}
        down = {'offered': 1, 'offered_bytes': 1000}
        return {
            way: {what: count * self.trips for what, count in counts.items()}
            for way, counts in (('up', up), ('down', down))
        }

    def settle(self) -> None:
        self.settled += 1


def contestant(outcomes: Iterable[float | None]) -> Contender:
    link, left = CountingLink(), iter(outcomes)

    def trip_ms(size: ImageSet) -> float | None:
        link.trips += 1
        return next(left)

    return Contender(link, trip_ms)


def record(*outcomes: float | None) -> ContenderResult:
    made = ContenderResult()
    for outcome in outcomes:
        made.add(outcome, NOTHING, NOTHING)
    return made


def test_every_trip_and_its_packets_are_added_up():
    other = contestant([5.0] * 3)
    made = run_rounds({'a': contestant([1.0, None, 2.0]), 'b': other}, SIZE, 3)['a']
    assert (made.times_ms, made.lost, made.trips) == ([1.0, 2.0], 1, 3)
    assert (made.sent_bytes, made.packets, made.dropped, made.late) == (48_000, 33, 6, 3)
    assert other.link.settled == 3


def test_who_loses_all_is_given_up_and_others_go_on():
    made = run_rounds({'deaf': contestant([None] * 99), 'good': contestant([1.0] * 9)}, SIZE, 9)
    assert made['deaf'].lost == MAX_LOST_IN_A_ROW
    assert len(made['good'].times_ms) == 9


def test_a_loss_now_and_then_is_no_reason_to_give_up():
    made = run_rounds({'a': contestant([None, None, 1.0] * 5)}, SIZE, 15)['a']
    assert (made.lost, len(made.times_ms)) == (10, 5)


def test_who_has_used_up_the_time_is_left_alone(monkeypatch):
    monkeypatch.setattr(rounds, 'BUDGET_S', 1e-9)
    # the first turn shows that there is no time
    assert run_rounds({'a': contestant([1.0] * 9)}, SIZE, 9)['a'].trips == 1


def test_the_case_holds_what_was_lost_and_what_came_too_late():
    records = {DEFAULT: record(*[100.0] * 7, TOO_OLD_MS + 1, None), OPENPI: record(*[200.0] * 8)}
    case = describe('a link', records)
    assert case.counts[f'lost by {DEFAULT}'] == case.counts[f'too old of {DEFAULT}'] == 1
    assert case.ratios[f'{DEFAULT} / {OPENPI}']['median'] == 0.5
    assert case.goals == {
        f'{DEFAULT}: median below that of {OPENPI}': True,
        f'{DEFAULT}: none lost, none too old': False,
    }


@pytest.mark.parametrize(
    ('mine', 'theirs', 'ahead'),
    [
        ([1.0] * 4, [2.0] * 4, True),
        ([2.0] * 4, [1.0] * 4, False),
        # too few to tell
        ([1.0] * 3, [2.0] * 3, False),
        ([1.0] * 4, [None] * 3, True),
        ([None] * 3, [None] * 3, False),
        ([None] * 3, [1.0] * 4, False),
    ],
)
def test_who_is_ahead(mine, theirs, ahead):
    goals = describe('a link', {DEFAULT: record(*mine), LEROBOT: record(*theirs)}).goals
    assert goals[f'{DEFAULT}: median below that of {LEROBOT}'] is ahead


@pytest.mark.parametrize(
    ('jpeg', 'raw', 'holds'),
    [
        ([299.0] * 4, [5000.0], (True, True)),
        ([100.0] * 90 + [400.0] * 10, [5000.0, None], (False, False)),
        ([None] * 3, [None] * 3, (False, False)),
    ],
)
def test_zenoh_is_quick_and_loses_nothing(jpeg, raw, holds):
    records = {DEFAULT: record(1.0), ZENOH: record(*jpeg), ZENOH_RAW: record(*raw)}
    goals = describe('a link', records).goals
    found = goals[f'{ZENOH}: p99 at most 300 ms'], goals[f'{ZENOH_RAW}: none lost']
    assert found == holds


def test_nothing_that_never_came_counts_as_good():
    goals = describe('a link', {DEFAULT: record(None)}).goals
    assert goals == {f'{DEFAULT}: none lost, none too old': False}


def test_what_was_never_tried_is_described_without_error():
    case = describe('a link', {DEFAULT: ContenderResult()})
    assert case.as_json()['series_ms'] == {DEFAULT: {'n': 0}}


def test_downscaling_is_left_out_where_pictures_are_not_larger():
    ways = {name for name, way in ENCODINGS.items() if way.suits(ImageSet(2, 224, 224))}
    assert set(ENCODINGS) - ways == {'JPEG 90, downscaled', ZENOH_DOWNSCALED}
    assert all(way.suits(SIZE) for way in ENCODINGS.values())


def test_percent_of_nothing_is_nothing():
    assert comparison.percent(0, 0) == 0
    assert comparison.percent(1, 3) == 33.33

# SPDX-License-Identifier: Apache-2.0
"""The goals of each part of the benchmark gateways: held, and missed by the one that is missed."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

import pytest

from benchmarks.gateways import one_client, two_robots
from benchmarks.gateways.gateway_process import ROS, ROUTED, ZENOH
from benchmarks.gateways.one_client import DIRECT, JPEG, LEROBOT, OPENPI, RAW, SIZES
from benchmarks.gateways.two_robots import BOTH, FIRST, SECOND
from benchmarks.peers.lerobot import ANOTHERS

WAYS = (ZENOH, ROUTED, ROS)
ADDED = 'adds at most 1.5 ms (p50) to a session without it'


def trips(theirs: str, theirs_ms: float, ours_ms: float, direct_ms: float) -> dict[str, list]:
    taken = {theirs: theirs_ms, **dict.fromkeys(WAYS, ours_ms), DIRECT: direct_ms}
    taken[one_client.IMMEDIATE] = direct_ms
    return {way: [ms] * 8 for way, ms in taken.items()}


def missed(goals: dict[str, bool]) -> set[str]:
    return {goal for goal, holds in goals.items() if not holds}


@pytest.mark.parametrize(
    ('theirs_ms', 'ours_ms', 'expected'),
    [(10.0, 12.0, {f'{ZENOH}: {ADDED}'}), (10.0, 11.4, set()), (4.0, 11.4, 'ratios')],
)
def test_openpi(theirs_ms, ours_ms, expected):
    case = one_client.describe(
        OPENPI, SIZES[0], {}, trips(OPENPI.theirs, theirs_ms, ours_ms, direct_ms=10.0)
    )
    assert len(case.goals) == 3
    ratios = {goal for goal in case.goals if '1.3 x' in goal}
    assert len(ratios) == 2 and missed(case.goals) == (
        ratios if expected == 'ratios' else expected
    )


@pytest.mark.parametrize(('theirs_ms', 'count'), [(20.0, 0), (10.0, 2)])
def test_lerobot(theirs_ms, count):
    case = one_client.describe(
        LEROBOT, SIZES[0], {}, trips(LEROBOT.theirs, theirs_ms, 7.0, direct_ms=6.0)
    )
    assert len(case.goals) == 3 and len(missed(case.goals)) == count
    # the goal of what is added is for the pictures that it names
    case = one_client.describe(
        LEROBOT, SIZES[1], {}, trips(LEROBOT.theirs, theirs_ms, 7.0, direct_ms=1.0)
    )
    assert len(case.goals) == 2


def test_http_has_the_goal_for_both_encodings():
    taken = {JPEG: [11.6] * 8, RAW: [11.5] * 8, DIRECT: [10.0] * 8}
    case = one_client.describe_ways('', SIZES[0], {}, taken, (JPEG, RAW))
    assert case.goals == {f'{JPEG}: {ADDED}': False, f'{RAW}: {ADDED}': True}
    assert one_client.describe_ways('', SIZES[1], {}, taken, (JPEG, RAW)).goals == {}
    assert one_client.added_goal(SIZES[0], RAW, []) == {f'{RAW}: {ADDED}': False}


class FakePeer:
    """Answers each trip as it is told."""

    def __init__(self, *outcomes: object) -> None:
        self._outcomes: Iterator[object] = iter(outcomes)

    def order(self, *what: object) -> object:
        return next(self._outcomes, None)


def test_two_robots_are_counted_by_what_they_got():
    first, second = FakePeer(*[1.0] * 4, ANOTHERS, 2.0), FakePeer(3.0, 3.0, 'lost', 3.0)
    peers = {1: first, 2: second}
    found = two_robots.drive(lambda number: contextlib.nullcontext(peers[number]), 4)
    assert found[FIRST, 'alone'].outcomes == {'answered': 4}
    # its client ended with the third request
    assert found[FIRST, BOTH].outcomes == {ANOTHERS: 1, 'answered': 1, 'client ended': 1}
    assert found[SECOND, BOTH].outcomes == {'answered': 3, 'lost': 1}
    assert found[SECOND, BOTH].share == 0.75
    case = two_robots.describe('a way', 0.0, found, {})
    assert case.counts[f'{FIRST} {BOTH}: {ANOTHERS}'] == 1
    assert case.parameters[f'{SECOND} {BOTH}: answered [%]'] == 75.0
    assert case.series_ms[f'{SECOND} {BOTH}'] == [3.0, 3.0, 3.0]

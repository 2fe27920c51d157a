# SPDX-License-Identifier: Apache-2.0
"""What trips of this package and of peers, made in turn, say of each other."""

from __future__ import annotations

import json

import pytest

from benchmarks import round_trip
from benchmarks.peers import comparison
from benchmarks.peers.comparison import DIRECT, DIRECT_JPEG, ECHOES, RoundTripTime
from lerobot_serve.errors import UserError


def results(direct=1.0, openpi=2.0, lerobot=10.0, echo=1.0, rounds=8):
    ways = {
        DIRECT: direct,
        DIRECT_JPEG: direct,
        comparison.ROUTED: direct,
        comparison.ROUTED_JPEG: direct,
    }
    ways |= {comparison.LEROBOT: lerobot, comparison.OPENPI: openpi}
    ways |= dict.fromkeys(ECHOES.values(), echo)
    return {way: [RoundTripTime(ms)] * rounds for way, ms in ways.items() if ms is not None}


def test_a_fast_package_meets_its_goals():
    case = comparison.describe('small', {'load': 1}, results())
    assert set(case.goals.values()) == {True}
    assert case.counts['rounds'] == 8
    assert case.ratios['direct raw / LeRobot']['median'] == 0.1
    assert case.ratios['direct raw / openpi']['p99'] == 0.5


@pytest.mark.parametrize(
    ('changed', 'missed'),
    [
        ({'lerobot': 1.9}, ['direct raw: median at most 0.5 x that of LeRobot']),
        (
            {'openpi': 0.9},
            ['direct raw: median below that of openpi', 'direct raw: p99 below that of openpi'],
        ),
        (
            {'echo': 0.6},
            [f'{mine}: median at most 1.5 x (floor + codec)' for mine in ECHOES],
        ),
    ],
)
def test_a_slower_package_misses_the_goal_it_misses(changed, missed):
    found = comparison.describe('small', {}, results(**changed)).goals
    assert [goal for goal, holds in found.items() if not holds] == missed


def test_a_slow_tail_misses_the_tail_goal_alone():
    found = results(rounds=100)
    found[DIRECT] = [RoundTripTime(1.0)] * 90 + [RoundTripTime(5.0)] * 10
    goals = comparison.describe('small', {}, found).goals
    missed = [goal for goal, holds in goals.items() if not holds]
    assert missed == ['direct raw: p99 below that of openpi']


def test_each_pause_has_a_case_and_openpi_s_time_is_the_measure():
    paced = {0: results(), 10: results(direct=3.0, openpi=4.0)}
    paced[10][DIRECT] = [RoundTripTime(3.0, stages_ms={'network': 2.0})] * 8
    cases = {case.name: case for case in comparison.cases('small', {}, paced)}
    assert cases['small, in a loop'].series_ms[DIRECT] == [1.0] * 8
    assert cases['small, each after 10 ms, stages of direct raw'].series_ms == {
        'network': [2.0] * 8
    }
    shares = cases["small, of openpi's time"].ratios
    assert shares[DIRECT] == {
        'p50 in a loop': 0.5,
        'p99 in a loop': 0.5,
        'p50 each after 10 ms': 0.75,
        'p99 each after 10 ms': 0.75,
    }
    assert comparison.OPENPI not in shares


def test_each_trip_follows_its_pause(monkeypatch):
    happened = []
    monkeypatch.setattr(round_trip.time, 'sleep', happened.append)
    pauses_ms = round_trip.parse_pauses('0,30')
    found = round_trip.alternate({DIRECT: lambda: happened.append('trip')}, 2, pauses_ms)
    assert happened == [0.0, 'trip', 0.03, 'trip'] * 2
    assert found == {0: {DIRECT: [None] * 2}, 30: {DIRECT: [None] * 2}}


@pytest.mark.parametrize('text', ['', '1,', 'a', '-1', '0.5', '60001'])
def test_a_pause_is_a_number_of_milliseconds(text):
    with pytest.raises(UserError, match='pauses-ms must be numbers'):
        round_trip.parse_pauses(text)


def test_the_codec_is_no_fault_of_the_transport():
    found = results(direct=4.0)
    found[DIRECT_JPEG] = [RoundTripTime(4.0, 3.0)] * 8
    case = comparison.describe('small', {}, found)
    assert case.series_ms['floor + codec of direct JPEG'] == [4.0] * 8
    assert case.goals['direct JPEG: median at most 1.5 x (floor + codec)']
    assert not case.goals['direct raw: median at most 1.5 x (floor + codec)']


def test_lost_trips_are_counted_and_leave_their_round_out():
    found = results()
    found[DIRECT][2] = None
    found['echo of raw'][5] = None
    case = comparison.describe('small', {}, found)
    assert case.counts['lost by direct raw'] == 1
    assert case.counts['lost by echo of raw'] == 1
    assert len(case.series_ms[DIRECT]) == 7
    assert len(case.series_ms['floor + codec of direct raw']) == 6


def test_a_peer_left_out_leaves_no_goal():
    case = comparison.describe('small', {}, results(openpi=None))
    assert not [goal for goal in case.goals if 'openpi' in goal]
    assert not [pair for pair in case.ratios if 'openpi' in pair]
    json.dumps(case.as_json())


def test_nothing_measured_meets_no_goal():
    lost = {way: [None] * 4 for way in results()}
    assert set(comparison.describe('small', {}, lost).goals.values()) == {False}

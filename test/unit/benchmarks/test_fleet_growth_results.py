# SPDX-License-Identifier: Apache-2.0

from collections import Counter

import pytest

from benchmarks.results.growth import (
    fleet_case,
    FleetRun,
    growth_case,
    steady_case,
    uncounted,
    Window,
)

ALONE = Window(10.0, [], {'router': 0.5}, {'router': 100.0})


def counts(**given: int) -> Counter[str]:
    return Counter({'sent': 100, 'answered': 100} | given)


def run(cpu_s: float, held_mb: float, requests: int = 100, **given: int) -> FleetRun:
    seen = Window(5.0, [2.0] * requests, {'router': cpu_s}, {'router': held_mb})
    return FleetRun([seen] * 3, counts(uncounted=0, **given))


@pytest.mark.parametrize(
    ('given', 'drops', 'found'),
    [
        ({}, {}, 0),
        ({'answered': 97, 'lost': 3}, {'timeout': 3}, 0),
        ({'answered': 97, 'lost': 3}, {'timeout': 1}, 2),
        ({'answered': 97, 'lost': 3}, {'late_reply': 3, 'failed_over': 3}, 3),
        ({'answered': 97, 'lost': 3, 'late': 3}, {}, 0),
        ({'answered': 97}, {'timeout': 3}, 3),
        ({'answered': 97, 'lost': 5}, {'timeout': 5}, 2),
    ],
)
def test_what_nobody_counted_is_counted(given, drops, found):
    assert uncounted(counts(**given), Counter(drops)) == found


def test_a_fleet_is_told_with_what_a_robot_costs():
    case = fleet_case(10, run(cpu_s=0.2, held_mb=103.0), ALONE)
    assert case.name == '10 robots'
    assert case.parameters == {
        'seconds': 15.0,
        'windows': 3,
        'chunks_per_s': 20.0,
        'router_share_of_a_core': 0.04,
        'router_percent_of_a_core_a_robot': 0.4,
        'router_mb': 103.0,
        'router_mb_a_robot': 0.3,
    }
    assert case.series_ms['processor time of router a request'] == [2.0] * 3
    assert len(case.series_ms['round trip']) == 300
    assert case.goals == {'nothing is lost': True, 'nothing is lost uncounted': True}


def test_what_is_lost_is_a_goal_that_was_missed():
    lossy = run(cpu_s=0.2, held_mb=103.0)
    lossy.counts.update(lost=2, uncounted=1)
    case = fleet_case(10, lossy, ALONE)
    assert case.goals == {'nothing is lost': False, 'nothing is lost uncounted': False}
    assert case.counts['lost'] == 2


@pytest.mark.parametrize(
    ('cpu_s', 'held_mb', 'holds'),
    [(6.0, 190.0, (True, True)), (6.1, 190.0, (False, True)), (6.0, 191.0, (True, False))],
)
def test_growth_is_linear_or_better_by_what_a_robot_costs(cpu_s, held_mb, holds):
    runs = {10: run(0.2, 103.0), 300: run(cpu_s, held_mb, requests=3000)}
    case = growth_case(runs, ALONE)
    assert case.name == 'from 10 to 300 robots'
    assert tuple(case.goals.values()) == holds
    assert case.parameters == {
        'router_share_of_a_core_without_robots': 0.05,
        'router_mb_without_robots': 100.0,
    }
    ((name, ratios),) = case.ratios.items()
    assert name == 'a robot of 300/a robot of 10'
    assert ratios['processor time of router'] == pytest.approx(cpu_s / 6.0, abs=1e-3)


def test_time_is_told_by_its_thirds():
    late = run(cpu_s=0.4, held_mb=103.0)
    case = steady_case(300, FleetRun([*run(0.2, 103.0).windows, *late.windows]))
    assert list(case.series_ms) == ['round trip, first third', 'round trip, last third']
    assert not case.goals['processor time of router stays']
    assert case.goals['p99 stays']

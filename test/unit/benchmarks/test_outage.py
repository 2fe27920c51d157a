# SPDX-License-Identifier: Apache-2.0

import pytest

from benchmarks.results.outage import describe, find_outage, longest_ms, Outage, RecordedCommand

KILLED_S = 10.0


def played(at_s: float, seen_s: float, episode_id: str = 'one') -> RecordedCommand:
    return RecordedCommand(at_s, seen_s, episode_id)


BEFORE = [played(9.8, 9.5), played(9.9, 9.5), played(10.0, 9.5)]


def test_a_robot_that_has_enough_to_play_has_no_outage_worth_the_name():
    lived = find_outage([*BEFORE, played(10.1, 9.5), played(10.2, 10.05)], KILLED_S)
    assert lived.next_chunk_ms == pytest.approx(200)
    assert lived.without_policy_ms == pytest.approx(100)
    assert lived.without_command_ms == pytest.approx(100)


def test_what_the_edge_does_on_its_own_is_a_command_and_no_action_of_the_policy():
    ladder = [RecordedCommand(10.2), RecordedCommand(10.3), RecordedCommand(10.5)]
    lived = find_outage([*BEFORE, *ladder, played(10.6, 10.4)], KILLED_S)
    assert lived.next_chunk_ms == pytest.approx(600)
    assert lived.without_policy_ms == pytest.approx(600)
    assert lived.without_command_ms == pytest.approx(200)


def test_a_chunk_on_what_was_seen_before_the_kill_does_not_end_it():
    assert find_outage([*BEFORE, played(10.1, 9.99), RecordedCommand(10.2)], KILLED_S) is None


def test_what_comes_after_its_end_is_no_part_of_it():
    lived = find_outage([*BEFORE, played(10.1, 10.01), played(15.0, 14.9)], KILLED_S)
    assert lived.without_command_ms == pytest.approx(100)


def test_a_robot_that_did_not_play_before_has_nothing_to_recover_from():
    assert find_outage([RecordedCommand(9.9), played(10.2, 10.1)], KILLED_S) is None
    assert find_outage([], KILLED_S) is None


def test_the_way_from_one_episode_to_the_next_is_told_apart():
    rest = [played(10.1, 9.5), RecordedCommand(10.5), played(10.9, 10.8, 'two')]
    lived = find_outage([*BEFORE, *rest], KILLED_S)
    assert lived.without_policy_ms == pytest.approx(100)
    assert lived.between_episodes_ms == pytest.approx(800)
    assert lived.without_command_ms == pytest.approx(400)


def test_the_longest_time_between_less_than_two_is_none():
    assert longest_ms([]) == 0.0
    assert find_outage([*BEFORE, played(10.1, 10.01)], KILLED_S).between_episodes_ms == 0.0


def lived(next_chunk_ms: float, between_episodes_ms: float = 0.0) -> Outage:
    return Outage(next_chunk_ms, 50.0, between_episodes_ms, 40.0)


def test_robots_that_stalled_are_counted_and_so_is_how_often():
    kills = [
        ([lived(500.0), lived(700.0), lived(90.0)], [0, 3, 1]),
        ([lived(300.0, 80.0), lived(100.0), lived(200.0)], [0, 0, 1]),
    ]
    case = describe('a way', kills, may_stall=False)
    assert case.counts == {'kills': 2, 'robots': 3, 'robots_stalled': 3, 'stalls': 5}
    assert case.goals == {'no robot stalls': False}
    assert len(case.series_ms['from the kill to the next chunk']) == 6
    assert case.series_ms['the same, slowest robot of each kill'] == [700.0, 300.0]
    assert case.series_ms['the same, from one episode to the next'] == [80.0]


def test_without_a_stall_the_goal_holds_where_there_is_one():
    kept = describe('a way', [([lived(1.0)] * 3, [0, 0, 0])], may_stall=False)
    assert kept.goals == {'no robot stalls': True}
    alone = describe('a way', [([lived(1.0)], [1])], may_stall=True)
    assert alone.goals == {}
    assert 'the same, slowest robot of each kill' not in alone.series_ms


def test_the_time_until_a_fault_shows_is_part_of_the_case_where_it_is_known():
    kills = [([lived(1.0)], [0])]
    case = describe('a way', kills, may_stall=True, noticed_ms=[120.0])
    assert case.series_ms['from the kill until the published state shows it'] == [120.0]
    known = describe('a way', kills, may_stall=True).series_ms
    assert 'from the kill until the published state shows it' not in known

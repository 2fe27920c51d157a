# SPDX-License-Identifier: Apache-2.0
"""Episodes and how they ended, counted once each, whatever is told twice, late or never."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest

from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.router.canary.facts import EpisodeEvent, SLOT_OF_ARM
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.replicas.slot_stats import HOUR_NS, OutcomeReceipt, OUTCOMES, SlotStats

SUCCESS, FAILURE, ABORTED = 1, 2, 3
CAPACITY = 10
WITHIN_NS = 24 * HOUR_NS


def placed(episode: str, slot: str = 'a', **more: object) -> Placement:
    return Placement(episode, 1, slot, 50, **more)


@pytest.fixture
def stats():
    return SlotStats(('a', 'b'), CAPACITY)


def run(stats: SlotStats, episode: str = 'e', slot: str = 'a', client: str = 'robot') -> None:
    """One request of an episode."""
    stats.record_request(client, placed(episode, slot), 0)


def ended(stats: SlotStats, slot: str = 'a') -> dict[str, int]:
    return {name: count for name, count in stats.slot(slot).ended.items() if count}


def happened(stats: SlotStats) -> list[tuple[str, str, str]]:
    """Take the events: episode, begin or end, slot of its begin."""
    return [(name, what, SLOT_OF_ARM[arm]) for name, what, arm, _ in stats.take_events()]


def test_a_reply_to_a_report_says_whether_it_counts(stats):
    run(stats, 'stays', client='r1')
    run(stats, 'moves', client='r2')
    stats.record_move('moves')
    moved = 'the episode moved between slots: it counts as moved, and its outcome for neither slot'
    again = 'was reported before; nothing was changed'
    other = "episode 'stays' already counts as success"
    other_moved = "episode 'moves' was already reported as success"
    for episode, outcome, expected in (
        ('stays', SUCCESS, OutcomeReceipt('', is_accepted=True, is_new=True)),
        ('stays', SUCCESS, OutcomeReceipt(again, is_accepted=True)),
        ('stays', FAILURE, OutcomeReceipt(other, is_accepted=False)),
        ('moves', SUCCESS, OutcomeReceipt(moved, is_accepted=True, is_new=True)),
        ('moves', SUCCESS, OutcomeReceipt(f'{again}; {moved}', is_accepted=True)),
        ('moves', FAILURE, OutcomeReceipt(other_moved, is_accepted=False)),
    ):
        assert stats.record_outcome(episode, outcome) == expected
    assert ended(stats) == {'success': 1}
    assert ended(stats, 'b') == {}


def test_what_cannot_be_counted_is_refused_in_words(stats):
    run(stats)
    assert stats.record_outcome('other', SUCCESS).text == "no episode 'other' was routed here"
    assert stats.record_outcome('', SUCCESS).text == "no episode '' was routed here"
    assert stats.record_outcome('e', 7).text == 'outcome must be one of 1, 2, 3, got 7'
    assert ended(stats) == {}


def test_an_episode_that_nobody_judges_is_unreported_after_a_while(stats):
    run(stats)
    stats.expire(10 * WITHIN_NS)
    assert ended(stats) == {}
    stats.end_episode('robot', 100)
    stats.expire(100 + WITHIN_NS - 1)
    assert ended(stats) == {}
    stats.expire(100 + WITHIN_NS)
    assert ended(stats) == {'unreported': 1}
    # what a canary has taken note of stays so
    assert stats.record_outcome('e', SUCCESS).text == "episode 'e' already counts as unreported"
    assert ended(stats) == {'unreported': 1}


def test_beginning_another_episode_ends_the_one_before(stats):
    run(stats, 'one')
    run(stats, 'two')
    stats.expire(WITHIN_NS)
    assert ended(stats) == {'unreported': 1}
    assert stats.slot('a').episodes == 2


def test_an_episode_that_goes_on_after_its_session_ended_has_not_ended(stats):
    run(stats)
    stats.end_episode('robot', 0)
    stats.record_request('robot', placed('e', sticky=True), 1)
    stats.expire(10 * WITHIN_NS)
    assert ended(stats) == {}
    stats.end_episode('robot', 10 * WITHIN_NS)
    stats.expire(11 * WITHIN_NS)
    assert ended(stats) == {'unreported': 1}
    assert stats.slot('a').episodes == 1


def test_an_episode_that_moved_in_the_life_of_a_router_before_is_not_judged(stats):
    stats.record_move('e')
    stats.record_request('robot', placed('e', 'b', moved=True), 0)
    stats.record_request('other', placed('f', 'b', moved=True, sticky=True), 0)
    for episode in 'ef':
        assert stats.record_outcome(episode, SUCCESS).is_accepted
    assert ended(stats, 'b') == {}
    assert stats.slot('b').episodes == 0


def test_an_episode_that_a_restarted_router_knows_is_judged_and_not_begun_again(stats):
    stats.record_request('robot', placed('e', sticky=True), 0)
    assert stats.slot('a').episodes == 0
    stats.record_outcome('e', SUCCESS)
    assert ended(stats) == {'success': 1}


def test_requests_without_an_episode_are_requests_only(stats):
    stats.record_request('robot', Placement('robot:1:1', 1, 'a', 50, missing_episode_id=True), 0)
    stats.end_episode('robot', 0)
    stats.expire(10 * WITHIN_NS)
    slot = stats.slot('a')
    assert (slot.requests, slot.episodes, ended(stats)) == (1, 0, {})


def test_an_episode_that_is_forgotten_while_it_waits_is_unreported(stats):
    run(stats, 'e0', client='first')
    stats.end_episode('first', 0)
    for number in range(1, CAPACITY + 1):
        run(stats, f'e{number}', client=f'robot-{number}')
    assert ended(stats) == {'unreported': 1}
    assert not stats.record_outcome('e0', SUCCESS).is_accepted
    stats.expire(10 * WITHIN_NS)
    assert ended(stats) == {'unreported': 1}


def test_what_robots_did_is_added_up(stats):
    before = ExecutionReport(100, 10, 5, 1, oldest_age_s=0.5)
    stats.record_executed('a', before, ExecutionReport(130, 12, 6, 1, oldest_age_s=0.25))
    stats.record_executed('a', before, ExecutionReport(100, 10, 5, 1, oldest_age_s=0.75))
    slot = stats.slot('a')
    assert (slot.commands, slot.fallbacks, slot.trips, slot.stalls) == (30, 2, 1, 0)
    assert slot.oldest_age_s == 0.75


@pytest.mark.parametrize('fallen', ['actions', 'fallbacks', 'trips', 'stalls'])
def test_a_robot_that_was_started_anew_adds_nothing(stats, fallen):
    before = ExecutionReport(10, 10, 10, 10)
    stats.record_executed('a', before, replace(ExecutionReport(50, 50, 50, 50), **{fallen: 9}))
    slot = stats.slot('a')
    assert (slot.commands, slot.fallbacks, slot.trips, slot.stalls) == (0, 0, 0, 0)


def test_a_verdict_of_the_next_morning_counts(stats):
    run(stats)
    stats.end_episode('robot', 0)
    stats.expire(20 * HOUR_NS)
    assert stats.record_outcome('e', FAILURE).is_accepted
    assert ended(stats) == {'failure': 1}
    short = SlotStats(('a', 'b'), CAPACITY, verdict_within_ns=HOUR_NS)
    run(short)
    short.end_episode('robot', 0)
    short.expire(HOUR_NS)
    assert ended(short) == {'unreported': 1}


def test_each_begin_and_end_is_an_event_once(stats):
    run(stats, 'good', 'a', 'r1')
    run(stats, 'moves', 'b', 'r2')
    run(stats, 'silent', 'b', 'r3')
    assert stats.take_events() == (
        ('good', 'begun', 'champion', 'r1'),
        ('moves', 'begun', 'candidate', 'r2'),
        ('silent', 'begun', 'candidate', 'r3'),
    )
    for _ in range(2):
        stats.record_outcome('good', SUCCESS)
        stats.record_move('moves')
    stats.record_outcome('moves', SUCCESS)
    stats.end_episode('r3', 0)
    stats.expire(WITHIN_NS)
    # one that moved counts where it began
    assert happened(stats) == [
        ('good', 'success', 'a'),
        ('moves', 'moved', 'b'),
        ('silent', 'unreported', 'b'),
    ]
    assert stats.take_events() == ()


def test_episodes_of_the_router_before_may_still_get_a_verdict(stats):
    begun = (('one', 'candidate'), ('two', 'candidate'), ('three', 'champion'))
    stats.restore_episodes([EpisodeEvent(name, 'begun', arm) for name, arm in begun], 0)
    # one continues, one has moved meanwhile, one ended while nobody looked
    stats.record_request('r1', placed('one', 'b', sticky=True), 1)
    stats.record_request('r2', placed('two', 'a', sticky=True, moved=True), 1)
    assert stats.record_outcome('one', FAILURE).is_accepted
    assert stats.record_outcome('two', SUCCESS).is_accepted
    assert stats.record_outcome('three', SUCCESS).is_accepted
    assert happened(stats) == [
        ('two', 'moved', 'b'),
        ('one', 'failure', 'b'),
        ('three', 'success', 'a'),
    ]
    assert stats.slot('b').episodes == 0


class Episodes(RuleBasedStateMachine):
    """Robots, judges and moves in any order, against a book of what each episode came to."""

    names = st.sampled_from([f'e{number}' for number in range(5)])
    robots = st.sampled_from(('r1', 'r2'))

    def __init__(self) -> None:
        super().__init__()
        self.stats, self.now_ns = SlotStats(('a', 'b'), 100), 0
        self.begun: dict[str, str] = {}
        self.judged: dict[str, str] = {}
        self.reported: dict[str, str] = {}
        self.moved: set[str] = set()
        self.before: dict[str, int] = {}
        self.events: list[tuple[str, str, str]] = []

    @rule(robot=robots, name=names, slot=st.sampled_from('ab'))
    def request(self, robot, name, slot):
        known = name in self.begun
        slot = self.begun.setdefault(name, slot)
        placement = placed(name, slot, sticky=known, moved=name in self.moved)
        self.stats.record_request(robot, placement, self.now_ns)

    @rule(robot=robots)
    def goes(self, robot):
        self.stats.end_episode(robot, self.now_ns)

    @rule(name=names, outcome=st.sampled_from((*OUTCOMES, 9)))
    def outcome(self, name, outcome):
        known_as = self.counted_as(name) if name in self.begun else ''
        # an episode that moved counts for neither slot, and its outcome is still reported once
        known_as = known_as or self.reported.get(name, '')
        refused = not self.stats.record_outcome(name, outcome).is_accepted
        may_count = name in self.begun and outcome in OUTCOMES
        how = OUTCOMES.get(outcome, '')
        assert refused == (not may_count or known_as not in ('', how))
        if not refused:
            self.reported[name] = how
        if not refused and name not in self.moved:
            assert self.judged.setdefault(name, how) == how

    def counted_as(self, name: str) -> str:
        return self.stats._episodes[name].outcome_name

    @rule(name=names)
    def moves(self, name):
        if name in self.begun:
            if not self.counted_as(name):
                self.moved.add(name)
            self.stats.record_move(name)

    @rule(ns=st.sampled_from((1, WITHIN_NS // 2, 2 * WITHIN_NS)))
    def time_passes(self, ns):
        self.now_ns += ns
        self.stats.expire(self.now_ns)

    @invariant()
    def every_episode_counts_once(self):
        for slot in 'ab':
            stats = self.stats.slot(slot)
            mine = {name for name, where in self.begun.items() if where == slot}
            assert stats.episodes == len(mine)
            assert stats.moved == len(mine & self.moved)
            judged = [how for n, how in self.judged.items() if n in mine]
            for how in OUTCOMES.values():
                assert stats.ended[how] == judged.count(how)
            silent = mine - self.moved - self.judged.keys()
            assert 0 <= stats.ended['unreported'] <= len(silent)
            # who looks at growth takes a counter that falls for a restart
            now = {f'{slot} {how}': stats.ended[how] for how in (*OUTCOMES.values(), 'unreported')}
            assert all(self.before.get(what, 0) <= count for what, count in now.items())
            self.before |= now

    @invariant()
    def events_say_the_same(self):
        self.events += happened(self.stats)
        begun = [(name, slot) for name, what, slot in self.events if what == 'begun']
        assert len(begun) == len(set(begun))
        assert dict(begun) == self.begun
        ends = [name for name, what, _ in self.events if what != 'begun']
        assert len(ends) == len(set(ends))
        for name, what, slot in self.events:
            assert slot == self.begun[name]
            if what == 'moved':
                assert name in self.moved
            elif what in OUTCOMES.values():
                assert self.judged[name] == what


TestEpisodes = Episodes.TestCase
TestEpisodes.settings = settings(max_examples=25, stateful_step_count=40)

"""Episodes and how they ended, counted once each, whatever is told twice, late or never."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest

from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.replicas.slot_stats import HOUR_NS, OUTCOMES, SlotStats
from lerobot_serve.wire.execution_report import ExecutionReport

SUCCESS, FAILURE, ABORTED = 1, 2, 3
CAPACITY = 10
WITHIN_NS = 24 * HOUR_NS


def placed(episode: str, slot: str = 'a', **more: object) -> Placement:
    return Placement(episode, 1, slot, 50, **more)


@pytest.fixture
def tally():
    return SlotStats(('a', 'b'), CAPACITY)


def run(tally: SlotStats, episode: str = 'e', slot: str = 'a', client: str = 'robot') -> None:
    """One request of an episode."""
    tally.record_request(client, placed(episode, slot), 0)


def ended(tally: SlotStats, slot: str = 'a') -> dict[str, int]:
    return {name: count for name, count in tally.slot(slot).ended.items() if count}


def test_the_same_outcome_twice_counts_once_and_another_is_refused(tally):
    run(tally)
    for _ in range(2):
        assert tally.outcome('e', SUCCESS) == ''
    assert ended(tally) == {'success': 1}
    assert tally.outcome('e', FAILURE) == "episode 'e' has counted as success already"
    tally.ended('robot', 0)
    tally.look(10 * WITHIN_NS)
    assert ended(tally) == {'success': 1}


def test_what_cannot_be_counted_is_refused_in_words(tally):
    run(tally)
    assert tally.outcome('other', SUCCESS) == "no episode 'other' was routed here"
    assert tally.outcome('', SUCCESS) == "no episode '' was routed here"
    assert tally.outcome('e', 7) == 'outcome must be one of 1, 2, 3, got 7'
    assert ended(tally) == {}


def test_an_episode_that_nobody_judges_is_unreported_after_a_while(tally):
    run(tally)
    tally.look(10 * WITHIN_NS)
    assert ended(tally) == {}
    tally.ended('robot', 100)
    tally.look(100 + WITHIN_NS - 1)
    assert ended(tally) == {}
    tally.look(100 + WITHIN_NS)
    assert ended(tally) == {'unreported': 1}
    # what a canary has taken note of stays so
    assert tally.outcome('e', SUCCESS) == "episode 'e' has counted as unreported already"
    assert ended(tally) == {'unreported': 1}


def test_beginning_another_episode_ends_the_one_before(tally):
    run(tally, 'one')
    run(tally, 'two')
    tally.look(WITHIN_NS)
    assert ended(tally) == {'unreported': 1}
    assert tally.slot('a').episodes == 2


def test_an_episode_that_goes_on_after_its_session_ended_has_not_ended(tally):
    run(tally)
    tally.ended('robot', 0)
    tally.record_request('robot', placed('e', cached=True), 1)
    tally.look(10 * WITHIN_NS)
    assert ended(tally) == {}
    tally.ended('robot', 10 * WITHIN_NS)
    tally.look(11 * WITHIN_NS)
    assert ended(tally) == {'unreported': 1}
    assert tally.slot('a').episodes == 1


def test_a_moved_episode_counts_as_moved_and_in_no_other_way(tally):
    run(tally)
    tally.moved('e', 'b')
    tally.moved('e', 'a')
    tally.outcome('e', SUCCESS)
    tally.ended('robot', 0)
    tally.look(10 * WITHIN_NS)
    assert (tally.slot('a').moved, tally.slot('b').moved) == (1, 0)
    assert (tally.slot('a').episodes, tally.slot('b').episodes) == (1, 0)
    assert (ended(tally), ended(tally, 'b')) == ({}, {})


def test_an_episode_that_was_judged_before_it_moved_counts_as_it_was_judged(tally):
    run(tally)
    tally.outcome('e', SUCCESS)
    tally.moved('e', 'b')
    assert (ended(tally), tally.slot('a').moved) == ({'success': 1}, 0)
    assert tally.outcome('e', FAILURE)
    assert (ended(tally), ended(tally, 'b')) == ({'success': 1}, {})


def test_an_episode_that_moved_in_the_life_of_a_router_before_is_not_judged(tally):
    tally.moved('e', 'b')
    tally.record_request('robot', placed('e', 'b', moved=True), 0)
    tally.record_request('other', placed('f', 'b', moved=True, cached=True), 0)
    for episode in 'ef':
        assert tally.outcome(episode, SUCCESS) == ''
    assert ended(tally, 'b') == {}
    assert tally.slot('b').episodes == 0


def test_an_episode_that_a_restarted_router_knows_is_judged_and_not_begun_again(tally):
    tally.record_request('robot', placed('e', cached=True), 0)
    assert tally.slot('a').episodes == 0
    tally.outcome('e', SUCCESS)
    assert ended(tally) == {'success': 1}


def test_requests_without_an_episode_are_requests_only(tally):
    tally.record_request('robot', Placement('robot:1:1', 1, 'a', 50, degraded=True), 0)
    tally.ended('robot', 0)
    tally.look(10 * WITHIN_NS)
    slot = tally.slot('a')
    assert (slot.requests, slot.episodes, ended(tally)) == (1, 0, {})


def test_an_episode_that_is_forgotten_while_it_waits_is_unreported(tally):
    run(tally, 'e0', client='first')
    tally.ended('first', 0)
    for number in range(1, CAPACITY + 1):
        run(tally, f'e{number}', client=f'robot-{number}')
    assert ended(tally) == {'unreported': 1}
    assert tally.outcome('e0', SUCCESS)
    tally.look(10 * WITHIN_NS)
    assert ended(tally) == {'unreported': 1}


def test_what_robots_did_is_added_up(tally):
    before = ExecutionReport(100, 10, 5, 1, oldest_age_s=0.5)
    tally.executed('a', before, ExecutionReport(130, 12, 6, 1, oldest_age_s=0.25))
    tally.executed('a', before, ExecutionReport(100, 10, 5, 1, oldest_age_s=0.75))
    slot = tally.slot('a')
    assert (slot.commands, slot.fallbacks, slot.trips, slot.stalls) == (30, 2, 1, 0)
    assert slot.oldest_age_s == 0.75


@pytest.mark.parametrize('fallen', ['actions', 'fallbacks', 'trips', 'stalls'])
def test_a_robot_that_was_started_anew_adds_nothing(tally, fallen):
    before = ExecutionReport(10, 10, 10, 10)
    tally.executed('a', before, replace(ExecutionReport(50, 50, 50, 50), **{fallen: 9}))
    slot = tally.slot('a')
    assert (slot.commands, slot.fallbacks, slot.trips, slot.stalls) == (0, 0, 0, 0)


def test_a_verdict_of_the_next_morning_counts(tally):
    run(tally)
    tally.ended('robot', 0)
    tally.look(20 * HOUR_NS)
    assert tally.outcome('e', FAILURE) == ''
    assert ended(tally) == {'failure': 1}
    short = SlotStats(('a', 'b'), CAPACITY, verdict_within_ns=HOUR_NS)
    run(short)
    short.ended('robot', 0)
    short.look(HOUR_NS)
    assert ended(short) == {'unreported': 1}


def test_each_begin_and_end_is_an_event_once(tally):
    run(tally, 'good', 'a', 'r1')
    run(tally, 'moves', 'b', 'r2')
    run(tally, 'silent', 'b', 'r3')
    assert tally.take_events() == (
        ('good', 'begun', 'a'),
        ('moves', 'begun', 'b'),
        ('silent', 'begun', 'b'),
    )
    for _ in range(2):
        tally.outcome('good', SUCCESS)
        tally.moved('moves', 'a')
    tally.outcome('moves', SUCCESS)
    tally.ended('r3', 0)
    tally.look(WITHIN_NS)
    # one that moved counts where it began
    assert tally.take_events() == (
        ('good', 'success', 'a'),
        ('moves', 'moved', 'b'),
        ('silent', 'unreported', 'b'),
    )
    assert tally.take_events() == ()


def test_episodes_of_the_router_before_may_still_get_a_verdict(tally):
    tally.expect([('one', 'b'), ('two', 'b'), ('three', 'a')], 0)
    # one goes on, one has moved meanwhile, one ended while nobody looked
    tally.record_request('r1', placed('one', 'b', cached=True), 1)
    tally.record_request('r2', placed('two', 'a', cached=True, moved=True), 1)
    assert tally.outcome('one', FAILURE) == ''
    assert tally.outcome('two', SUCCESS) == ''
    assert tally.outcome('three', SUCCESS) == ''
    assert tally.take_events() == (
        ('two', 'moved', 'b'),
        ('one', 'failure', 'b'),
        ('three', 'success', 'a'),
    )
    assert tally.slot('b').episodes == 0


class Episodes(RuleBasedStateMachine):
    """Robots, judges and moves in any order, against a book of what each episode came to."""

    names = st.sampled_from([f'e{number}' for number in range(5)])
    robots = st.sampled_from(('r1', 'r2'))

    def __init__(self) -> None:
        super().__init__()
        self.tally, self.now_ns = SlotStats(('a', 'b'), 100), 0
        self.begun: dict[str, str] = {}
        self.judged: dict[str, str] = {}
        self.moved: set[str] = set()
        self.before: dict[str, int] = {}
        self.events: list[tuple[str, str, str]] = []

    @rule(robot=robots, name=names, slot=st.sampled_from('ab'))
    def request(self, robot, name, slot):
        known = name in self.begun
        slot = self.begun.setdefault(name, slot)
        placement = placed(name, slot, cached=known, moved=name in self.moved)
        self.tally.record_request(robot, placement, self.now_ns)

    @rule(robot=robots)
    def goes(self, robot):
        self.tally.ended(robot, self.now_ns)

    @rule(name=names, outcome=st.sampled_from((*OUTCOMES, 9)))
    def outcome(self, name, outcome):
        known_as = self.counted_as(name) if name in self.begun else ''
        refused = self.tally.outcome(name, outcome)
        may_count = name in self.begun and outcome in OUTCOMES
        how = OUTCOMES.get(outcome, '')
        assert bool(refused) == (not may_count or known_as not in ('', how))
        if not refused and name not in self.moved:
            assert self.judged.setdefault(name, how) == how

    def counted_as(self, name: str) -> str:
        return self.tally._episodes[name].ended_as

    @rule(name=names, slot=st.sampled_from('ab'))
    def moves(self, name, slot):
        if name in self.begun:
            if not self.counted_as(name):
                self.moved.add(name)
            self.tally.moved(name, slot)

    @rule(ns=st.sampled_from((1, WITHIN_NS // 2, 2 * WITHIN_NS)))
    def time_passes(self, ns):
        self.now_ns += ns
        self.tally.look(self.now_ns)

    @invariant()
    def every_episode_counts_once(self):
        for slot in 'ab':
            tally = self.tally.slot(slot)
            mine = {name for name, where in self.begun.items() if where == slot}
            assert tally.episodes == len(mine)
            assert tally.moved == len(mine & self.moved)
            judged = [how for n, how in self.judged.items() if n in mine]
            for how in OUTCOMES.values():
                assert tally.ended[how] == judged.count(how)
            silent = mine - self.moved - self.judged.keys()
            assert 0 <= tally.ended['unreported'] <= len(silent)
            # who looks at growth takes a counter that falls for a restart
            now = {f'{slot} {how}': tally.ended[how] for how in (*OUTCOMES.values(), 'unreported')}
            assert all(self.before.get(what, 0) <= count for what, count in now.items())
            self.before |= now

    @invariant()
    def events_say_the_same(self):
        self.events += self.tally.take_events()
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

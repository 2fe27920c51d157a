# SPDX-License-Identifier: Apache-2.0
"""Several routers of a site: one split, one rollout, one placement of each episode."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
import threading

import psycopg
import pytest
from support.router.episodes import request, run_episodes
from support.router.site_rig import Site
from support.waiting import wait_until

from lerobot_serve.router.api.slot_commands import SlotCommandRejected
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.monitoring.metrics import collect, state_losses
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.records import SPLIT
from lerobot_serve.router.storage.store import StoreUnwritable
from lerobot_serve_interfaces.msg import RoutingDecision
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
PLAN = ('50', '100')
OPEN = {
    'canary_minimum_step_s': 0.0,
    'canary_block_episodes': 1,
    'canary_max_latency_ratio': 0.0,
    'canary_max_trip_percent': 0.0,
    'canary_max_fallback_percent': 0.0,
    'canary_max_failed_percent': 0.0,
}


@pytest.fixture
def site(tmp_path, url):
    made = Site(tmp_path, url)
    yield made
    made.close()


@pytest.fixture
def pair(site):
    first, second = site.start(), site.start()
    site.step(2)
    return first, second


def episode_in(slot: str, percent: int, start: int = 0) -> str:
    return next(
        name
        for name in map('episode {}'.format, range(start, start + 10_000))
        if (bucket(name) < percent) == (slot == 'a')
    )


class TestIntent:
    def test_a_split_holds_at_both(self, site, pair):
        pair[1].command(R.SET_SPLIT, split_percent=80)
        site.step()
        assert [router.core.parameters.split_percent for router in pair] == [80, 80]
        assert [router.core.table.rules.split_percent for router in pair] == [80, 80]
        known = pair[0].core.writer.decisions['parameter', 'split_percent']
        assert (known['value'], known['by']) == (80, 'by test')

    def test_the_later_of_two_splits_holds_everywhere(self, site, pair):
        pair[0].command(R.SET_SPLIT, split_percent=80)
        pair[1].command(R.SET_SPLIT, split_percent=20)
        pair[0].core.writer.flush()
        pair[1].core.writer.flush()
        site.step(2)
        splits = {router.core.parameters.split_percent for router in pair}
        assert splits == {20}

    def test_a_parameter_set_live_survives_all_routers(self, site, pair):
        pair[0].set_live(split_percent=30)
        site.step()
        for router in pair:
            site.kill(router)
        again = site.start(split_percent=60)
        assert again.core.parameters.split_percent == 30
        assert any('30' in line and '60' in line for line in again.told)

    def test_a_file_that_says_otherwise_counts_for_all_while_nothing_is_set_live(self, site, pair):
        site.start(split_percent=60)
        site.step(2)
        assert {r.core.parameters.split_percent for r in site.routers} == {60}

    def test_a_value_set_back_to_that_of_the_file_holds_at_both(self, site, pair):
        pair[0].set_live(split_percent=30)
        site.step()
        pair[1].set_live(split_percent=50)
        site.step()
        assert {r.core.parameters.split_percent for r in site.routers} == {50}

    def test_a_drain_holds_at_both_and_ends_at_both(self, site, pair):
        pair[0].command(R.DRAIN, 'b', 'repair')
        site.step()
        assert [bool(router.slots['b'].drain) for router in pair] == [True, True]
        assert 'repair' in pair[1].slots['b'].text
        pair[1].command(R.RESTORE, 'b')
        site.step()
        assert [bool(router.slots['b'].drain) for router in pair] == [False, False]

    def test_a_drain_holds_in_a_router_that_starts_later(self, site, pair):
        pair[0].command(R.DRAIN, 'b', 'repair')
        site.step()
        assert 'repair' in site.start().slots['b'].text

    def test_an_own_decision_is_not_undone_by_an_older_one_that_arrives_later(self, site, pair):
        first, second = pair
        second.set_live(split_percent=20)
        second.core.writer.flush()
        first.core.follower.look()
        first.set_live(split_percent=80)
        first.core.writer.flush()
        first.core.shared.poll(first.now_ns)
        assert first.core.parameters.split_percent == 80
        site.step(2)
        assert {r.core.parameters.split_percent for r in pair} == {80}

    def test_a_file_does_not_change_the_split_of_a_rollout(self, site, pair):
        TestRollout().start(site, pair[0])
        later = site.start(split_percent=0)
        site.step(3)
        assert later.core.canary.canary.state in ON_TRIAL
        assert {r.core.parameters.split_percent for r in site.routers} == {50}

    def test_a_restore_reaches_a_drain_that_this_router_does_not_know_yet(self, site, pair):
        pair[0].command(R.DRAIN, 'b', 'repair')
        pair[1].command(R.RESTORE, 'b')
        site.step(2)
        assert [bool(router.slots['b'].drain) for router in pair] == [False, False]


class TestPlacements:
    def test_an_episode_stays_where_another_router_placed_it(self, site, pair):
        first, second = pair
        name = episode_in('a', 80)
        first.command(R.SET_SPLIT, split_percent=80)
        site.step()
        assert first.place(name) == 'a'
        second.command(R.SET_SPLIT, split_percent=0)
        site.step()
        assert second.place(name) == 'a'
        assert second.place(episode_in('a', 80, 5000)) == 'b'

    def test_of_two_placements_the_first_holds(self, site, pair):
        first, second = pair
        name = episode_in('a', 50)
        second.slots['a'].drain = first.core.decisions._make_drain({'text': 'away', 'now': False})
        assert (first.place(name), second.place(name)) == ('a', 'b')
        first.core.writer.flush()
        second.core.writer.flush()
        second.slots['a'].drain = None
        site.step(2)
        assert (first.place(name), second.place(name)) == ('a', 'a')

    def test_a_move_holds_at_both(self, site, pair):
        first, second = pair
        name = episode_in('a', 50)
        assert first.place(name) == 'a'
        site.step()
        second.command(R.DRAIN, 'a', 'repair', at_once=True)
        assert second.place(name) == 'b'
        site.step(2)
        found = first.core.table.placements.find(name)
        assert (found.slot, found.moved) == ('b', True)

    def test_a_placement_names_the_version_of_the_split(self, site, pair):
        first, second = pair
        second.place('zero')
        first.command(R.SET_SPLIT, split_percent=80)
        site.step(2)
        version = first.core.writer.store.written['parameter', 'split_percent']
        second.place('one')
        assert second.core.table.placements.find('one').split_version == version
        before, decision = decisions(second)
        assert 0 < before.split_version < decision.split_version == version
        site.step(2)
        assert first.core.table.placements.find('one').split_version == version
        later = site.start()
        assert later.core.table.placements.find('one').split_version == version
        later.place('two')
        assert later.core.table.placements.find('two').split_version == version

    def test_each_placement_names_the_version_of_its_split(self, site, pair):
        """Episodes begin all the time, while the split is set at both, by command or live."""
        stop = threading.Event()

        def place_all_the_time(router) -> None:
            numbers = count()
            while not stop.wait(0.002):
                router.place(f'{router.name} {next(numbers)}')

        with ThreadPoolExecutor(2) as pool:
            routes = [pool.submit(place_all_the_time, router) for router in pair]
            try:
                for percent in range(5, 95, 10):
                    pair[0].command(R.SET_SPLIT, split_percent=percent)
                    site.step()
                    pair[1].set_live(split_percent=percent + 1)
                    site.step()
            finally:
                stop.set()
            for each in routes:
                each.result(30.0)
        splits: dict[int, set[int]] = defaultdict(set)
        for router in pair:
            for placed in router.core.table.placements._placed.values():
                splits[placed.split_version].add(placed.split_percent)
        assert all(len(percents) == 1 for percents in splits.values()), splits
        # the first one, and at least some of those that were set
        assert 0 not in splits
        assert len(splits) > 4

    def test_a_goal_that_waits_for_the_lock_gets_split_and_version_of_the_same_moment(self, pair):
        table = pair[0].core.table
        lock, later = table.lock, replace(table.rules, split_percent=80)

        class Busy:
            """The split is set by who has the lock."""

            def __enter__(self) -> None:
                lock.acquire()
                table.change_rules(later)
                table.placements.split_version = 1_000_000

            def __exit__(self, *_: object) -> None:
                lock.release()

        table.lock = Busy()
        pair[0].place('one')
        placed = table.placements.find('one')
        assert (placed.split_percent, placed.split_version) == (80, 1_000_000)

    def test_a_split_that_cannot_be_stored_yet_has_no_version(self, site, pair, monkeypatch):
        first, second = pair
        with monkeypatch.context() as patch:
            patch.setattr(first.core.writer.store, 'write', unwritable)
            first.set_live(split_percent=80)
            first.place('at once')
        site.step(2)
        first.place('later')
        second.place('elsewhere')
        at_once, later = decisions(first)
        (elsewhere,) = decisions(second)
        found = [(each.split_percent, each.split_version) for each in (at_once, later, elsewhere)]
        version = later.split_version
        assert version > 0
        assert found == [(80, 0), (80, version), (80, version)]

    def test_a_split_that_was_refused_has_no_version(self, site, pair):
        """Two commands at one moment: the second one builds on a rollout that has changed."""
        first, second = pair
        for router in pair:
            router.set_live(**OPEN)
        site.step(2)
        first.command(R.CANARY_START, plan=PLAN)
        with pytest.raises(SlotCommandRejected, match='another router changed the rollout'):
            second.command(R.CANARY_START, plan=('20', '100'))
        second.place('at once')
        (at_once,) = decisions(second)
        site.step(4)
        second.place('later')
        version = second.core.writer.revision_of(SPLIT)
        stored = second.core.writer.decisions[SPLIT]['value']
        later = decisions(second)[-1]
        assert (later.split_percent, later.split_version) == (stored, version)
        assert (at_once.split_version == version) <= (at_once.split_percent == stored)

    def test_a_move_names_the_split_with_which_its_episode_began(self, site, pair):
        first, second = pair
        name = episode_in('a', 50)
        first.place(name)
        site.step()
        second.command(R.SET_SPLIT, split_percent=80)
        second.command(R.DRAIN, 'a', 'repair', at_once=True)
        site.step()
        second.place(name)
        (placed,), (moved,) = decisions(first), decisions(second)
        assert (placed.moved, moved.moved) == (False, True)
        assert placed.split_version == moved.split_version
        assert placed.split_percent == moved.split_percent == 50


def unwritable(_: object) -> None:
    raise StoreUnwritable('away')


def decisions(router) -> list[RoutingDecision]:
    """Return what a router has published of placements."""
    return [each for each in router.published if isinstance(each, RoutingDecision)]


def await_lead(site, router) -> None:
    """The server gives up the lock of a connection just after that has ended."""
    wait_until(lambda: site.step() or router.core.shared.leads, 'it leads')


class TestRollout:
    def start(self, site, router):
        router.set_live(**OPEN)
        site.step()
        text = router.command(R.CANARY_START, plan=PLAN)
        assert 'act@b' in text or 'plan' in text
        site.step(3)

    def test_one_router_leads(self, site, pair):
        assert sum(router.core.shared.leads for router in pair) == 1
        gauges = [
            {m.name: m.samples[0].value for m in collect(r.core, {}) if m.samples} for r in pair
        ]
        leads = [found['lerobot_serve_router_leads_rollout'] for found in gauges]
        assert sorted(leads) == [0, 1]
        assert {found['lerobot_serve_router_site_routers'] for found in gauges} == {2}
        site.kill(pair[0])
        await_lead(site, pair[1])

    @pytest.mark.parametrize('at', [0, 1])
    def test_a_rollout_that_begins_at_either_runs_at_both(self, site, pair, at):
        self.start(site, pair[at])
        for router in pair:
            assert router.core.canary.canary.state in ON_TRIAL
            assert router.core.parameters.split_percent == 50
            assert router.slots['b'].is_on_trial

    def test_outcomes_of_both_count_once(self, site, pair):
        self.start(site, pair[0])
        for router in pair:
            run_episodes(router, 40, lambda slot: True)
        site.step(3)
        totals = pair[0].core.canary.canary.record.trial.totals
        begun = sum(arm.begun for arm in totals.values())
        success = sum(arm.success for arm in totals.values())
        assert (begun, success) == (80, 80)
        placed = [r.core.table.stats.slot('b').episodes for r in pair]
        assert totals['candidate'].begun == sum(placed)
        assert min(placed) > 0

    def test_outcomes_count_once_over_a_change_of_the_lead(self, site, pair):
        self.start(site, pair[0])
        for router in pair:
            run_episodes(router, 40, lambda slot: True)
        pair[0].core.writer.flush()
        pair[1].core.writer.flush()
        site.step()
        site.kill(pair[0])
        run_episodes(pair[1], 10, lambda slot: True, start=40)
        await_lead(site, pair[1])
        site.step(2)
        totals = pair[1].core.canary.canary.record.trial.totals
        assert sum(arm.success for arm in totals.values()) == 90

    def test_an_outcome_may_be_reported_to_another_router(self, site, pair):
        first, second = pair
        self.start(site, first)
        request(first, 'shared')
        site.step(2)
        assert second.core.record_outcome('shared', 1).is_accepted
        site.step(2)
        totals = first.core.canary.canary.record.trial.totals
        assert sum(arm.success for arm in totals.values()) == 1
        assert not second.core.record_outcome('unknown', 1).is_accepted

    def test_a_worse_candidate_is_rolled_back_at_both(self, site, pair):
        self.start(site, pair[1])
        start = 0
        while pair[0].core.canary.canary.state is not CanaryPhase.ROLLED_BACK and start < 400:
            for router in pair:
                run_episodes(router, 20, lambda slot: slot == 'a', start)
            start += 20
            site.step()
        site.step(2)
        for router in pair:
            assert router.core.canary.canary.state is CanaryPhase.ROLLED_BACK
            assert router.core.parameters.split_percent == 100
            assert 'rolled back' in router.slots['b'].verdict_record.text

    def test_a_good_candidate_is_promoted_at_both(self, site, pair):
        self.start(site, pair[0])
        start = 0
        while pair[0].core.canary.canary.state is not CanaryPhase.PROMOTED and start < 3000:
            for router in pair:
                run_episodes(router, 50, lambda slot: True, start)
            start += 50
            site.step()
        site.step(2)
        for router in pair:
            assert router.core.canary.canary.state is CanaryPhase.PROMOTED, (
                router.core.canary.canary.text
            )
            assert router.core.parameters.split_percent == 0

    @pytest.mark.parametrize('command', [R.CANARY_PAUSE, R.CANARY_ROLLBACK])
    def test_a_command_at_the_router_that_does_not_lead_holds(self, site, pair, command):
        self.start(site, pair[0])
        pair[1].command(command)
        site.step(2)
        states = {router.core.canary.canary.state for router in pair}
        wanted = CanaryPhase.PAUSED if command == R.CANARY_PAUSE else CanaryPhase.ROLLED_BACK
        assert states == {wanted}

    def test_of_two_commands_at_one_moment_the_second_is_refused(self, site, pair):
        self.start(site, pair[0])
        pair[0].command(R.CANARY_PAUSE)
        with pytest.raises(SlotCommandRejected, match='another router changed the rollout'):
            pair[1].command(R.CANARY_PROMOTE)
        assert state_losses(pair[1].core)['state_conflict'] == 1
        site.step(2)
        for router in pair:
            assert router.core.canary.canary.state is CanaryPhase.PAUSED
            assert router.core.parameters.split_percent == 50

    def test_an_abort_that_comes_second_bars_the_policy_all_the_same(self, site, pair):
        self.start(site, pair[0])
        pair[0].command(R.CANARY_PAUSE)
        with pytest.raises(SlotCommandRejected, match='another router changed the rollout'):
            pair[1].command(R.CANARY_ROLLBACK)
        site.step(2)
        for router in pair:
            assert 'rolled back' in router.slots['b'].verdict_record.text

    def test_a_router_that_sees_another_policy_holds_the_rollout(self, site, pair):
        self.start(site, pair[0])
        pair[1].hear('/b1', policy='act@other')
        site.step(3)
        canary = pair[0].core.canary.canary
        assert canary.state is CanaryPhase.UNDECIDED
        assert 'act@other at /router_2' in canary.text

    def test_a_router_that_cannot_reach_the_candidate_holds_the_rollout(self, site, pair):
        self.start(site, pair[0])
        pair[1].away('/b1')
        site.step(3)
        assert pair[0].core.canary.canary.state is CanaryPhase.UNDECIDED
        assert 'not healthy at /router_2' in pair[0].core.canary.canary.text

    def test_a_resume_that_comes_second_lifts_nothing(self, site, pair):
        self.start(site, pair[0])
        pair[0].command(R.CANARY_ROLLBACK)
        site.step(2)
        pair[0].command(R.CANARY_RESUME)
        with pytest.raises(SlotCommandRejected, match='another router changed the rollout'):
            pair[1].command(R.CANARY_RESUME)
        pair[0].command(R.CANARY_ROLLBACK)
        site.step(3)
        for router in pair:
            assert router.slots['b'].verdict_record.verdict in BARRING_VERDICTS

    def test_replies_count_over_a_change_of_the_lead(self, site, pair):
        self.start(site, pair[0])
        first, second = pair
        for _ in range(30):
            first.core.table.stats.record_reply('b', 5.0)
            second.core.table.stats.record_reply('b', 5.0)
        site.step(7)
        growth = first.core.canary.canary.record.growth
        assert growth.arms['candidate'].replies == 60
        for _ in range(5):
            second.core.table.stats.record_reply('b', 5.0)
        site.kill(first)
        await_lead(site, second)
        site.step(2)
        growth = second.core.canary.canary.record.growth
        assert growth.arms['candidate'].replies == 65

    def test_what_ended_just_before_a_router_ends_counts(self, site, pair):
        self.start(site, pair[0])
        run_episodes(pair[1], 10, lambda slot: True)
        pair[1].core.hand_over_episodes()
        pair[1].core.writer.flush()
        site.step(2)
        totals = pair[0].core.canary.canary.record.trial.totals
        assert sum(arm.success for arm in totals.values()) == 10

    def test_an_episode_that_another_router_moves_counts_as_moved(self, site, pair):
        first, second = pair
        first.set_live(failover_slots='both')
        self.start(site, first)
        name = episode_in('a', 50)
        assert request(first, name) == 'a'
        site.step(2)
        second.command(R.DRAIN, 'a', 'repair', at_once=True)
        assert second.place(name) == 'b'
        site.step(3)
        assert first.core.canary.canary.record.trial.totals['champion'].moved == 1

    def test_a_router_that_cannot_write_leaves_the_lead(self, site, pair):
        first, second = pair
        first.core.writer.store.failure = 'its schema is 2'
        first.step()
        second.step()
        first.core.writer.store.failure = 'its schema is 2'
        await_lead(site, second)


class TestStrangers:
    def test_two_sites_with_one_name_are_seen(self, site, pair):
        site.start(slot_a=('/x1',), slot_b=('/x2',))
        site.step(3)
        assert 'if it is of another site, set another state_site' in pair[0].core.storage_problem

    def test_two_routers_with_one_name_are_seen(self, site, pair):
        site.start(name='/router_1')
        site.step(2)
        assert 'two routers of this site are named /router_1' in pair[0].core.storage_problem

    @pytest.mark.parametrize(
        'report',
        [
            '[]',
            '{',
            '{"servers": 5}',
            '{"servers": {"a": 5}}',
            '{"servers": {"a": [["x"]]}, "candidate": 3}',
        ],
    )
    def test_a_report_of_anything_ends_no_router(self, site, pair, url, report):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO lerobot_serve_default.members VALUES ('x', '/x', now(), true, 1, %s)",
                (report,),
            )
        site.step(2)
        assert pair[0].core.shared.leads

    def test_another_site_in_the_same_database_is_apart(self, site, pair):
        other = site.start(state_site='north')
        other.set_live(split_percent=10)
        site.step(2)
        assert pair[0].core.parameters.split_percent == 50
        assert other.core.shared.routers == 1


class TestDamage:
    def test_a_bar_that_becomes_unreadable_stays(self, site, pair, url):
        site.step()
        pair[0].core.decisions.bar(pair[0].slots['b'], 'act@b', 'it fell', at_once=False)
        site.step(2)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "UPDATE lerobot_serve_default.decisions SET value = '{', "
                "revision = nextval('lerobot_serve_default.revisions') WHERE kind = 'verdict'"
            )
        for router in pair:
            router.core.follower.read_all()
        site.step(2)
        for router in pair:
            assert router.core.decisions.verdicts['act@b'].verdict in BARRING_VERDICTS

    def test_a_verdict_that_cannot_be_read_bars_the_candidate(self, site, pair, url):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                'INSERT INTO lerobot_serve_default.decisions '
                "VALUES ('verdict', 'act@old', '{\"verdict\"', "
                "nextval('lerobot_serve_default.revisions'), 'psql')"
            )
        later = site.start()
        site.step(3)
        for router in (*pair, later):
            assert not router.slots['b'].is_healthy
            assert 'damaged' in router.slots['b'].text

# SPDX-License-Identifier: Apache-2.0
"""The canary at work: the split and verdicts that it sets, what is logged and what is kept."""

from __future__ import annotations

from pathlib import Path

from builtin_interfaces.msg import Time
import pytest
from support.replacing import replace
from support.router.canary_rig import NEW, OLD, World
from support.router.contexts import make_context

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.canary import CanaryCommandRejected
from lerobot_serve.router.canary.controller import CanaryController, slot_facts
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import SlotCounters
from lerobot_serve.router.storage.decisions import DurableDecisions
from lerobot_serve.router.storage.sqlite_store import SqliteStore
from lerobot_serve.router.storage.writer import StoreWriter
from lerobot_serve_interfaces.msg import CanaryState

S = 1_000_000_000
TWO = RouterParameters(slot_a=('/a',), slot_b=('/b',))
STEPS = replace(
    TWO,
    canary_plan=('5:10:60', '50:10:60', '100'),
    canary_margin=0.4,
    canary_false_promotion=0.3,
    canary_block_episodes=1,
)


class Rig:
    """A watch with its store, and both slots as a world plays them."""

    def __init__(self, folder: Path, parameters: RouterParameters = STEPS) -> None:
        self.folder = folder
        self.intent: DurableDecisions | None = None
        self.splits: list[int] = []
        self.told: list[str] = []
        self.informed: list[str] = []
        self.happened: list[tuple[str, int | None]] = []
        self.world = World()
        self.watch = self.begin(parameters)

    def begin(self, parameters: RouterParameters = STEPS) -> CanaryController:
        """A router starts; what the one before knew is in the store."""
        if self.intent:
            self.intent.writer.close()
        writer = StoreWriter(
            SqliteStore(self.folder, 10, 'now'), self.told.append, self.informed.append
        )
        context = make_context(self.world, self.told, self.informed)
        self.intent = DurableDecisions(writer, context)
        self.slot = Slot('b', ('/b',), parameters, self.intent.verdicts)
        self.slot.policy = NEW
        self.intent.restore({'b': self.slot})
        self.watch = CanaryController(
            parameters,
            self.slot,
            self.intent,
            context,
            set_split=self.splits.append,
            on_event=lambda what, share: self.happened.append((what.what, share)),
        )
        return self.watch

    def poll(self, *, after_s: float = 1.0) -> bool:
        self.world.now_ns += int(after_s * S)
        seen = replace(self.world.facts, events=self.world.events())
        return self.watch.update(self.world.now_ns, seen)

    def state(self) -> CanaryState:
        return self.watch.report(Time(sec=7))

    def pass_a_step(self) -> None:
        self.world.good_episodes()
        for _ in range(3):
            self.poll(after_s=50.0)


@pytest.fixture
def rig(tmp_path):
    built = Rig(tmp_path)
    yield built
    built.intent.writer.close()


def test_without_a_plan_it_leaves_the_split_alone(tmp_path):
    rig = Rig(tmp_path, TWO)
    assert not rig.poll()
    assert (rig.splits, rig.told) == ([], [])
    state = rig.state()
    assert (state.state, state.step_count, state.estimated_remaining_episodes) == (
        CanaryState.OFF,
        0,
        -1,
    )
    with pytest.raises(CanaryCommandRejected, match=r'canary\.plan'):
        rig.watch.run_command('promote', '', 0)


def test_the_split_follows_each_step_and_is_set_once(rig):
    assert rig.poll()
    assert rig.splits == [95]
    for _ in range(5):
        assert not rig.poll()
    assert rig.splits == [95]
    rig.pass_a_step()
    assert rig.splits == [95, 50]
    rig.pass_a_step()
    assert rig.splits == [95, 50, 0]
    assert rig.state().state == CanaryState.PROMOTED
    assert [what for what, _ in rig.happened if what == 'promoted'] == ['promoted'] * 2
    assert rig.happened[-1] == ('promoted', 100)
    assert any(text.startswith('canary promoted: ') for text in rig.informed)
    # what goes well is not a warning
    assert rig.told == []


def test_a_slot_that_fails_takes_the_share_away_at_once(rig):
    rig.poll()
    rig.world.change('candidate', healthy=False, health_text='unhealthy: timeout')
    assert rig.poll()
    assert rig.splits == [95, 100]
    state = rig.state()
    assert state.state == CanaryState.ROLLED_BACK
    assert 'unhealthy: timeout' in state.text


def test_the_report_tells_all_that_was_seen(rig):
    rig.poll()
    rig.world.end('candidate', 3, 1)
    rig.world.end('champion', 9, 2)
    rig.poll()
    state = rig.state()
    assert (state.state, state.slot, state.stamp.sec) == (CanaryState.RUNNING, 'b', 7)
    assert (state.candidate_policy, state.champion_policy) == (NEW, OLD)
    assert (state.step, state.step_count, state.share_percent) == (0, 3, 5)
    assert (state.candidate_successes, state.candidate_failures) == (3, 1)
    assert (state.champion_successes, state.champion_failures) == (9, 2)
    assert state.step_elapsed_s == pytest.approx(1.0)
    assert state.estimated_remaining_episodes >= -1
    assert state.text


def test_the_report_has_what_slot_a_serves_also_without_a_plan(tmp_path):
    """A learner that was away while a version became the champion builds on it."""
    rig = Rig(tmp_path, TWO)
    rig.world.change('champion', policy=NEW)
    rig.poll()
    state = rig.state()
    assert (state.state, state.champion_policy) == (CanaryState.OFF, NEW)
    rig.intent.writer.close()


def test_an_operators_word_is_followed_at_once_and_told_once(rig):
    rig.poll()
    assert 'too early' in rig.watch.run_command('rollback', 'too early', rig.world.now_ns)
    assert rig.splits == [95, 100]
    told = [text for text in rig.told if 'too early' in text]
    assert len(told) == 1
    assert not rig.poll()
    assert len([text for text in rig.told if 'too early' in text]) == 1


def test_the_split_is_its_own_until_it_is_over(rig):
    rig.watch.check_split(50, 50)
    with pytest.raises(ParameterError, match=r'promote or roll back \(`lerobot-serve rollout`'):
        rig.watch.check_split(50, 20)
    rig.poll()
    rig.watch.run_command('rollback', '', rig.world.now_ns)
    rig.watch.check_split(50, 20)
    # and whatever the operator sets then stays
    before = list(rig.splits)
    for _ in range(3):
        rig.poll()
    assert rig.splits == before


def split_by_hand(rig: Rig, how: str) -> None:
    """Let an operator give slot b a half, after the rollout."""
    rig.watch.check_split(100, 50)
    if how == 'in the file':
        # the file has another split in the router that starts next
        rig.begin()


@pytest.mark.parametrize('how', ['live', 'in the file'])
def test_a_policy_that_waits_has_no_share_whatever_the_split_was_in_between(rig, how):
    rig.poll()
    rig.watch.run_command('rollback', 'arm hit the table', rig.world.now_ns)
    split_by_hand(rig, how)
    rig.poll()
    rig.splits.clear()
    rig.poll()
    assert rig.splits == [], 'the rollout is over, and the split is the operators'
    rig.slot.policy = 'unplanned@3'
    rig.world.change('candidate', policy='unplanned@3')
    rig.poll()
    assert (rig.state().state, rig.state().share_percent) == (CanaryState.WAITING, 0)
    assert rig.splits == [100]
    rig.poll()
    assert rig.splits == [100]


def test_another_plan_begins_anew_with_the_next_look(rig):
    rig.poll()
    rig.watch.change_parameters(replace(STEPS, canary_plan=('20', '100')))
    assert rig.splits == [95], 'a change of parameters sets none'
    assert rig.poll()
    assert rig.splits[-1] in (80, 100)
    rig.poll()
    assert rig.splits[-1] == 80
    # told, and not lost because it did not happen in a look
    assert [what for what, _ in rig.happened].count('restarted') == 1


def test_a_plan_that_is_taken_away_gives_the_split_back(rig):
    rig.poll()
    rig.watch.change_parameters(TWO)
    assert rig.poll()
    assert rig.state().state == CanaryState.OFF
    assert rig.splits == [95]
    rig.watch.check_split(95, 10)
    assert rig.happened[-1] == ('stopped', None)


def test_it_goes_on_where_it_was(rig):
    rig.poll()
    rig.pass_a_step()
    assert rig.splits == [95, 50]
    rig.splits.clear()
    rig.begin()
    rig.poll()
    assert rig.splits == [50]
    assert rig.state().step == 1


def test_a_verdict_is_there_at_once_and_after_a_restart(rig):
    rig.poll()
    assert rig.slot.conditions().verdict is PolicyVerdict.ON_TRIAL
    rig.watch.run_command('rollback', 'arm hit the table', rig.world.now_ns)
    assert rig.slot.verdict_record.verdict is PolicyVerdict.ROLLED_BACK
    rig.begin(TWO)
    assert rig.slot.verdict_record.verdict is PolicyVerdict.ROLLED_BACK
    assert 'arm hit the table' in rig.slot.verdict_record.text
    # another policy in the slot is another matter
    rig.slot.policy = OLD
    assert rig.slot.verdict_record.verdict is PolicyVerdict.NONE


def test_after_a_promotion_the_split_is_the_operators_also_after_a_restart(rig):
    rig.poll()
    for _ in range(2):
        rig.pass_a_step()
    assert rig.state().state == CanaryState.PROMOTED
    assert rig.slot.verdict_record.verdict is PolicyVerdict.PROMOTED
    rig.splits.clear()
    rig.begin()
    rig.poll()
    assert rig.state().state == CanaryState.PROMOTED
    assert rig.splits == []


def test_a_rollback_before_the_policy_is_known_bars_whatever_comes(rig):
    rig.world.change('candidate', policy='', healthy=False)
    rig.poll()
    rig.watch.run_command('rollback', 'not that one', rig.world.now_ns)
    assert rig.slot.verdict_record.verdict is PolicyVerdict.ROLLED_BACK
    rig.slot.policy = OLD
    assert rig.slot.verdict_record.verdict is PolicyVerdict.ROLLED_BACK


def test_what_is_seen_of_a_slot():
    slot = Slot('b', ('/b',), TWO)
    slot.policy = NEW
    stats = SlotCounters(chunks=90, commands=300, fallbacks=4, trips=5, oldest_age_s=0.5)
    stats.failed.update(timeout=6, not_finite=4)
    for _ in range(32):
        stats.latency.add(20.0)
    facts = slot_facts(slot, stats)
    assert (facts.replies, facts.failed_replies) == (100, 10)
    assert (facts.commands, facts.fallbacks, facts.trips) == (300, 4, 5)
    assert (facts.latency_ms_p95, facts.oldest_age_s, facts.policy) == (20.0, 0.5, NEW)
    assert (facts.healthy, '/b: no status received' in facts.health_text) == (False, True)

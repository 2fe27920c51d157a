# SPDX-License-Identifier: Apache-2.0
"""The learner with played steps: rounds, pauses, failures, restarts and rolled-back versions."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import math
from pathlib import Path
import shutil

import pytest
from support.learner.learner_rig import episode, LearnerRig, PARENT

from lerobot_serve.learner.database import MemoryNotWritten
from lerobot_serve.learner.rounds import learner
from lerobot_serve.learner.rounds.learner import OVERTIME_S, SHOW_PERIOD_S
from lerobot_serve.learner.rounds.requests import Command
from lerobot_serve.learner.rounds.states import FIRST_RETRY_S, MOST_DEATHS
from lerobot_serve.learner.steps import (
    ConvertDone,
    ConvertJob,
    Failed,
    PublishJob,
    RefusedBag,
    ScanDone,
    ScanJob,
    SkippedFolder,
    TrainDone,
    TrainJob,
)
from lerobot_serve.learner.trainers.base import Progress
from lerobot_serve.learner.versions import CanaryNews, PolicyVerdict


@pytest.fixture
def rig(tmp_path):
    made = LearnerRig(tmp_path)
    yield made
    made.learner.end()


@pytest.fixture
def ready(rig):
    """A learner that has looked for episodes."""
    rig.finish(ScanJob)
    return rig


def at(rig: LearnerRig, phase: str, *numbers: int) -> LearnerRig:
    """Bring a round to a state."""
    if rig.step and isinstance(rig.step.job, ScanJob):
        rig.finish(ScanJob)
    rig.announce(*(numbers or (1, 2, 3)))
    for kind in (ScanJob, ConvertJob, TrainJob)[: PHASES.index(phase) + 1]:
        rig.finish(kind)
    assert rig.phase == phase
    return rig


@contextlib.contextmanager
def full_disk(rig: LearnerRig, monkeypatch, method: str) -> Iterator[None]:
    """Let a method of the memory fail as on a full disk."""

    def refuse(*_: object) -> None:
        raise MemoryNotWritten('No space left on device; make room on its disk')

    with monkeypatch.context() as patch:
        patch.setattr(rig.memory, method, refuse)
        yield


PHASES = ('CONVERTING', 'TRAINING', 'PUBLISHING')


def test_enough_episodes_become_a_version(ready):
    ready.announce(1, 2)
    assert ready.phase == 'WAITING' and not ready.step
    assert ready.learner.shown.text.startswith('waits for 1 more episode (2 of 3)')
    ready.announce(3)
    assert ready.phase == 'CONVERTING'
    ready.finish(ScanJob)
    converted = ready.finish(ConvertJob)
    assert len(converted.bags) == 3
    trained = ready.finish(TrainJob)
    assert trained.new_episodes == {0, 1, 2}
    assert trained.parent == ready.settings.parent
    published = ready.finish(PublishJob)
    assert not trained.output.exists()
    assert published.parent == PARENT
    assert published.note == 'round 1: 3 new episodes, 3 with a person; 3 in all'
    assert ready.announced == ['reach@0000000000000001']
    shown = ready.learner.shown
    assert (shown.state.name, shown.round, shown.episodes_new) == ('WAITING', 1, 0)
    assert shown.latest == shown.parent == 'reach@0000000000000001'


def test_the_next_round_builds_on_the_version_and_keeps_old_data(ready):
    first = ready.round(1, 2, 3)
    at(ready, 'CONVERTING', 4, 5, 6)
    job = ready.finish(ConvertJob)
    assert len(job.bags) == 6
    trained = ready.finish(TrainJob)
    assert trained.new_episodes == {3, 4, 5}
    assert trained.parent == ready.settings.store / first
    assert ready.finish(PublishJob).parent == first


def test_a_rolled_back_version_is_not_built_upon_and_its_episodes_are_new_again(ready):
    first = ready.round(1, 2, 3)
    second = ready.round(4, 5, 6)
    ready.reject(second)
    # the same episodes alone would give the same version again
    assert ready.phase == 'WAITING' and not ready.step
    at(ready, 'TRAINING', 7, 8, 9)
    job = ready.finish(TrainJob)
    assert job.parent == ready.settings.store / first
    assert job.new_episodes == set(range(3, 9))


def test_no_round_builds_on_a_descendant_of_a_rolled_back_version(ready):
    first = ready.round(1, 2, 3)
    ready.round(4, 5, 6)
    ready.reject(f'another_name@{first.partition("@")[2]}')
    assert ready.learner.shown.parent == PARENT
    ready.come_back()
    assert ready.learner.shown.parent == PARENT
    # nor is it announced again
    assert len(ready.announced) == 2


def test_a_promotion_after_a_rollback_lifts_it(ready):
    first = ready.round(1, 2, 3)
    ready.reject(first)
    ready.accept(first)
    assert ready.learner.shown.parent == first


def test_with_a_canary_a_version_that_is_not_promoted_is_not_built_upon(following):
    """One that its gate refused must not become the ancestor of all that follow."""
    ready = following
    refused = ready.round(1, 2, 3)
    assert ready.learner.shown.parent == PARENT
    # its episodes do not begin another round
    assert not ready.step
    second = ready.round(4, 5, 6)
    assert {each.id: each.parent for each in ready.memory.versions()} == {
        refused: PARENT,
        second: PARENT,
    }
    ready.accept(second)
    assert ready.learner.shown.parent == second
    ready.come_back()
    assert ready.learner.shown.parent == second
    ready.reject(second)
    assert ready.learner.shown.parent == PARENT


def test_episodes_of_a_version_that_was_not_accepted_are_new_once(following):
    """The accepted one was trained on them, too."""
    ready = following
    ready.round(1, 2, 3)
    # a bag that is gone since stays in the dataset
    shutil.rmtree(ready.folder / 'bags' / 'bag_2')
    ready.announce(4, 5, 6)
    for kind, new in ((ScanJob, None), (ConvertJob, None), (TrainJob, range(6))):
        job = ready.finish(kind)
        assert new is None or job.new_episodes == set(new)
    assert ready.finish(PublishJob).note.startswith('round 2: 6 new episodes')
    ready.accept(ready.learner.shown.latest)
    at(ready, 'TRAINING', 7, 8, 9)
    assert ready.finish(TrainJob).new_episodes == {6, 7, 8}


@pytest.mark.parametrize('phase', PHASES)
def test_a_round_whose_parent_is_rolled_back_is_begun_again_from_the_champion(ready, phase):
    first = ready.round(1, 2, 3)
    second = ready.round(4, 5, 6)
    at(ready, phase, 7, 8, 9)
    assert ready.learner.shown.parent == second
    running = ready.step
    ready.reject(second)
    assert running.is_asked_to_end
    assert isinstance(ready.step.job, ScanJob)
    third = ready.run_round()
    versions = {each.id: each.parent for each in ready.memory.versions()}
    assert versions[third] == first
    assert ready.learner.shown.round == 3


def test_without_a_parent_a_round_fails_with_what_to_do(ready):
    ready.reject(PARENT)
    ready.announce(1, 2, 3)
    ready.finish(ScanJob)
    assert ready.phase == 'WAITING'
    text = ready.learner.shown.text
    assert f'the parent {PARENT} was rolled back' in text and 'set the parameter parent' in text


def test_a_version_that_the_store_has_lost_is_not_built_upon(ready):
    first = ready.round(1, 2, 3)
    shutil.rmtree(ready.settings.store / first)
    ready.announce(4)
    assert ready.learner.shown.parent == PARENT


@pytest.mark.parametrize('phase', PHASES)
def test_a_step_that_cannot_be_started_ends_no_learner(ready, phase):
    first = ready.round(1, 2, 3)
    at(ready, phase, 4, 5, 6)
    if phase == 'TRAINING':
        # the next step waits for the process of this one
        ready.step.is_hanging = True
    ready.refuses_to_start = True
    ready.learner.requests.put(CanaryNews(PolicyVerdict.REJECTED, first, 'worse'))
    # behind it in the same turn
    ready.learner.requests.put(episode(9, ready.folder / 'bags'))
    ready.turn()
    for step in ready.steps:
        step.is_hanging = False
    ready.turn()
    assert ready.phase == 'WAITING'
    assert ready.dropped['round_failed'] == 1
    assert any('no process can be started' in line for line in ready.log)
    assert ready.learner.shown.episodes == 7
    ready.refuses_to_start = False
    ready.now_s += FIRST_RETRY_S
    ready.turn()
    ready.run_round()
    assert ready.memory.versions()[-1].parent == PARENT


@pytest.mark.parametrize('phase', PHASES)
def test_a_failed_step_ends_the_round_and_the_learner_goes_on(rig, phase):
    at(rig, phase)
    rig.report(Failed('No space left on device'))
    shown = rig.learner.shown
    assert shown.state.name == 'WAITING'
    assert 'round 1 failed: No space left on device' in shown.text
    assert rig.dropped['round_failed'] == 1
    rig.turn()
    assert not rig.step
    rig.now_s += FIRST_RETRY_S
    rig.turn()
    assert rig.run_round()
    assert rig.learner.shown.round == 2
    assert 'failed' not in rig.learner.shown.text


def test_a_round_that_fails_before_it_goes_on_after_a_restart_is_ended(rig):
    at(rig, 'TRAINING')
    rig.come_back()
    assert rig.phase == 'CONVERTING' and isinstance(rig.step.job, ScanJob)
    rig.report(Failed('No space left on device'))
    assert rig.memory.open_round is None
    assert rig.learner.ended == {'failed': 1}


def test_a_person_does_not_wait_for_the_time_after_a_failure(rig):
    at(rig, 'TRAINING')
    rig.report(Failed('broken'))
    assert rig.ask(Command.START)[0]
    rig.turn()
    assert rig.run_round()


@pytest.mark.parametrize('phase', PHASES)
def test_a_killed_learner_begins_the_round_again_or_publishes_it(rig, phase):
    at(rig, phase)
    rig.come_back()
    if phase == 'PUBLISHING':
        # what is trained is not trained again
        assert isinstance(rig.step.job, PublishJob)
        rig.finish(PublishJob)
    else:
        assert rig.run_round()
    assert rig.learner.shown.round == 1
    assert len(rig.memory.versions()) == len(rig.announced) == 1
    assert rig.memory.used() == {f'{number:064x}' for number in (1, 2, 3)}


def test_killed_between_the_store_and_its_memory_it_publishes_the_same_version_again(rig):
    at(rig, 'PUBLISHING')
    rig.results(rig.step.job)
    rig.come_back()
    rig.finish(PublishJob)
    assert [each.id for each in rig.memory.versions()] == ['reach@0000000000000001']


def test_a_trained_policy_that_is_gone_is_trained_again(rig):
    at(rig, 'PUBLISHING')
    shutil.rmtree(rig.step.job.policy)
    rig.come_back()
    assert isinstance(rig.step.job, ScanJob)
    assert rig.run_round()


def test_a_trained_policy_whose_parent_was_rolled_back_meanwhile_is_trained_again(ready):
    first = ready.round(1, 2, 3)
    at(ready, 'PUBLISHING', 4, 5, 6)
    ready.kill()
    ready.start()
    ready.reject(first)
    ready.finish(ScanJob)
    second = ready.run_round()
    assert ready.memory.versions()[-1].parent == PARENT
    assert ready.memory.versions()[-1].id == second


def test_a_round_that_ends_process_after_process_is_given_up(rig):
    at(rig, 'TRAINING')
    for _ in range(MOST_DEATHS):
        rig.restart()
    assert rig.memory.open_round is None
    assert any('round 1 given up' in line for line in rig.log)
    assert rig.learner.ended == {'given_up': 1}


def test_an_orderly_end_is_no_death(rig):
    at(rig, 'TRAINING')
    for _ in range(MOST_DEATHS + 1):
        assert rig.step
        rig.learner.end()
        # with its process
        assert not rig.step
        rig.steps.clear()
        rig.start()
    assert rig.memory.open_round.deaths == 0
    rig.finish(ScanJob)
    assert rig.run_round()


@pytest.mark.parametrize('phase', ('CONVERTING', 'TRAINING'))
def test_a_pause_ends_the_step_and_resume_begins_the_round_again(rig, phase):
    at(rig, phase)
    running = rig.step
    ok, text = rig.ask(Command.PAUSE)
    assert ok and 'resume begins it again' in text
    assert rig.phase == 'PAUSED' and running.is_asked_to_end
    rig.announce(4, 5, 6)
    rig.come_back()
    rig.turn()
    assert rig.phase == 'PAUSED' and not rig.step
    assert not rig.ask(Command.START)[0]
    assert rig.ask(Command.RESUME)[0]
    rig.turn()
    assert rig.run_round()
    assert rig.learner.shown.round == 1


def test_a_pause_lets_a_publication_end(rig):
    at(rig, 'PUBLISHING')
    ok, text = rig.ask(Command.PAUSE)
    assert ok and 'is published, then' in text
    assert rig.phase == 'PUBLISHING'
    assert 'then the learner pauses' in rig.learner.shown.text
    rig.finish(PublishJob)
    assert rig.phase == 'PAUSED'
    assert len(rig.announced) == 1


def test_a_pause_while_a_round_looks_for_episodes_is_followed_by_that_round(ready):
    ready.announce(1)
    ready.ask(Command.START)
    ready.turn()
    assert ready.phase == 'CONVERTING'
    ready.ask(Command.PAUSE)
    ready.ask(Command.RESUME)
    ready.turn()
    assert ready.run_round()


def test_a_step_begins_when_the_process_of_the_last_one_is_gone(rig):
    at(rig, 'TRAINING')
    hanging = rig.step
    hanging.is_hanging = True
    rig.ask(Command.PAUSE)
    rig.ask(Command.RESUME)
    rig.turn()
    assert rig.step is None
    hanging.is_hanging = False
    rig.turn()
    assert rig.run_round()


def test_what_an_ended_step_reports_does_not_count(rig):
    at(rig, 'TRAINING')
    training = rig.step
    rig.ask(Command.PAUSE)
    training.reports.append(TrainDone(Path('/nowhere'), 'reach@00000000000000bb'))
    rig.turn()
    assert rig.phase == 'PAUSED' and not rig.memory.versions()


def test_the_schedule_begins_a_round_with_fewer_episodes(ready):
    ready.set(episodes_per_round=100, round_period_s=3600.0)
    ready.announce(1)
    ready.now_s += 3599.0
    ready.turn()
    assert not ready.step
    ready.now_s += 1.0
    ready.turn()
    assert ready.run_round()
    ready.now_s += 3600.0
    ready.turn()
    # nothing is new: no round, and the next search comes a period later
    ready.finish(ScanJob)
    assert ready.phase == 'WAITING' and ready.learner.shown.round == 1
    ready.turn()
    assert not ready.step


def test_a_search_finds_what_no_recorder_announced(rig):
    rig.found = [episode(number, rig.folder / 'bags') for number in (1, 2, 3)]
    rig.finish(ScanJob)
    assert rig.phase == 'CONVERTING'
    assert rig.run_round()
    # found again and again, and counted once
    assert rig.learner.shown.episodes == 3
    assert 'repeated' not in rig.dropped


def test_doubles_are_removed_and_counted(ready):
    ready.announce(1, 1)
    copy = episode(2, ready.folder / 'copies', sha256=f'{1:064x}', episode_id='e1')
    other = episode(3, ready.folder / 'copies', episode_id='e1')
    for each in (copy, copy, other):
        ready.learner.requests.put(each)
    ready.turn()
    shown = ready.learner.shown
    assert (shown.episodes, shown.episodes_new) == (1, 1)
    assert ready.dropped == {'repeated': 2, 'double': 1, 'other_bag': 1}


def test_the_rest_of_a_cut_episode_counts_with_its_outcome(ready):
    """A killed recorder leaves a bag without an outcome; the next one records the rest."""
    ready.announce(1, outcome='')
    assert ready.learner.shown.episodes_new == 0
    ready.announce(2, episode_id='e1')
    shown = ready.learner.shown
    assert (shown.episodes, shown.episodes_new) == (1, 1)
    assert ready.dropped == {'not_selected': 1}
    assert any("bag_2 has the outcome of episode 'e1'" in line for line in ready.log)
    # announced again, and a third one: the one with the outcome stays
    ready.announce(1, outcome='')
    ready.announce(3, episode_id='e1', outcome='failure')
    ready.come_back()
    ready.ask(Command.START)
    ready.finish(ScanJob)
    assert [bag.sha256 for bag in ready.step.job.bags] == [f'{2:064x}']


def test_a_cut_episode_that_passes_the_filters_stays(rig):
    """It may be in the dataset."""
    rig.set(episode_filters=())
    rig.come_back()
    rig.announce(1, outcome='')
    rig.announce(2, episode_id='e1')
    assert rig.dropped == {'other_bag': 1}
    assert [each.sha256 for each in rig.memory.episodes()] == [f'{1:064x}']


@pytest.mark.parametrize('is_first_gone', [False, True])
def test_a_round_gets_all_copies_of_a_bag_that_are_there(ready, is_first_gone):
    ready.announce(1)
    first = ready.folder / 'bags' / 'bag_1'
    if is_first_gone:
        shutil.rmtree(first)
    copy = episode(2, ready.folder / 'copies', sha256=f'{1:064x}', episode_id='e1')
    ready.learner.requests.put(copy)
    ready.ask(Command.START)
    ready.turn()
    ready.finish(ScanJob)
    (bag,) = ready.step.job.bags
    there = [Path(copy.path)] if is_first_gone else [first, Path(copy.path)]
    assert [bag.path, *bag.copies] == there


def test_a_bag_elsewhere_is_counted_with_what_to_do_and_looked_for_again(ready):
    path = ready.folder / 'mount' / 'bag'
    ready.announce(1, host='robot', path=str(path))
    assert ready.dropped == {'other_host': 1}
    assert any(f'{path} is on robot; mount that folder here' in line for line in ready.log)
    assert ready.learner.shown.episodes_new == 0
    path.mkdir(parents=True)
    ready.now_s += 60.0
    ready.turn()
    assert ready.learner.shown.episodes_new == 1
    assert ready.dropped == {'other_host': 1}


def test_episodes_that_do_not_pass_the_filter_are_counted_and_left_out(ready):
    ready.announce(1, 2, 3, outcome='failure')
    assert not ready.step
    assert ready.dropped == {'not_selected': 3}


@pytest.mark.parametrize('field', ['client_id', 'episode_id', 'host', 'path'])
@pytest.mark.parametrize('value', ['', 'a\nb', '\x1b[2J'])
def test_a_malformed_announcement_is_counted(ready, field, value):
    ready.announce(1, **{field: value})
    assert ready.dropped == {'malformed': 1}
    assert ready.learner.shown.episodes == 0


def test_a_bag_that_cannot_be_converted_does_not_begin_rounds(ready):
    sha256 = f'{1:064x}'
    ready.refused[sha256] = RefusedBag(sha256, 'not_converted', 'another robot')
    ready.round(1, 2, 3)
    shown = ready.learner.shown
    assert ready.dropped == {'not_converted': 1}
    assert shown.episodes_new == 0
    assert ready.memory.used() == {f'{number:064x}' for number in (2, 3)}
    del ready.refused[sha256]
    ready.round(4, 5, 6)
    assert sha256 in ready.memory.used()


def test_a_round_without_a_new_converted_episode_fails(ready):
    at(ready, 'CONVERTING')
    ready.report(ConvertDone((), (), 0, 'd' * 64, ()))
    assert 'none of the new episodes could be converted' in ready.learner.shown.text


def test_training_that_gives_a_published_version_fails(ready):
    first = ready.round(1, 2, 3)
    at(ready, 'TRAINING', 4, 5, 6)
    ready.report(TrainDone(Path('/x'), first))
    assert f'training gave {first}, which is published already' in ready.learner.shown.text


def test_a_trainer_that_does_not_end_is_ended(rig):
    at(rig, 'TRAINING')
    training = rig.step
    rig.now_s += 60 * rig.settings.parameters.round_budget_minutes + OVERTIME_S - 1
    rig.turn()
    assert not training.is_asked_to_end
    rig.now_s += 2
    rig.turn()
    assert training.is_asked_to_end
    assert 'did not end' in rig.learner.shown.text


def test_progress_is_shown_each_second(rig):
    at(rig, 'TRAINING')
    rig.report(Progress(0.25, 1.5, 30.0))
    rig.now_s += 1.0
    rig.turn(1)
    shown = rig.learner.shown
    assert (shown.progress, shown.loss, shown.remaining_s) == (0.25, 1.5, 30.0)
    count = len(rig.states)
    rig.turn()
    assert len(rig.states) == count
    rig.report(Failed('x'))
    assert math.isnan(rig.learner.shown.loss)


@pytest.mark.parametrize('phase', ['WAITING', *PHASES, 'PAUSED'])
def test_the_state_is_shown_each_second_in_each_phase(ready, phase):
    rig = ready
    if phase in PHASES:
        at(rig, phase)
    if phase == 'PAUSED':
        rig.ask(Command.PAUSE)
    rig.turn()
    count = len(rig.states)
    rig.turn()
    assert len(rig.states) == count
    rig.now_s += SHOW_PERIOD_S
    rig.turn(1)
    assert len(rig.states) == count + 1
    assert rig.states[-1].state.name == phase


def test_a_parent_that_cannot_be_read_is_said(rig):
    rig.report(ScanDone('', ('the parent /x cannot be used: no policy',)))
    assert any('the parent /x cannot be used' in line for line in rig.log)
    assert rig.learner.shown.parent == ''


def test_a_folder_without_an_episode_is_counted_and_named(rig):
    rig.report(SkippedFolder('/bags/7', 'it is not a bag'))
    assert rig.dropped == {'no_episode': 1}
    assert 'no_episode: /bags/7: it is not a bag' in rig.log


def test_a_verdict_that_the_disk_refuses_is_counted(ready, monkeypatch):
    with full_disk(ready, monkeypatch, 'reject'):
        ready.reject('reach@0000000000000001')
    ready.now_s += SHOW_PERIOD_S
    ready.turn()
    assert ready.dropped == {'disk_full': 1}
    assert 'No space left on device; make room on its disk' in ready.log


def test_the_thread_sleeps_until_the_next_look_or_a_deposit(ready, monkeypatch):
    monkeypatch.setattr(learner, 'SHOW_PERIOD_S', 0.0)
    ready.learner._wait()
    monkeypatch.setattr(learner, 'SHOW_PERIOD_S', 600.0)
    ready.learner.stop()
    ready.learner._wait()


def test_episodes_wait_while_the_disk_is_full(ready, monkeypatch):
    with full_disk(ready, monkeypatch, 'learn'):
        ready.announce(1, 2, 3)
    assert ready.learner.shown.episodes == 0
    ready.now_s += 5.0
    ready.turn()
    assert ready.learner.shown.episodes == 3


@pytest.mark.parametrize('method', ['begin_round', 'set_dataset', 'set_trained', 'set_published'])
def test_a_full_disk_at_any_point_fails_the_round_and_nothing_counts_twice(
    ready, monkeypatch, method
):
    with full_disk(ready, monkeypatch, method):
        ready.announce(1, 2, 3)
        while ready.step:
            ready.finish()
    assert 'No space left on device' in ready.learner.shown.text
    ready.now_s += FIRST_RETRY_S
    ready.turn()
    while ready.step:
        ready.finish()
    assert len(ready.memory.versions()) == 1
    assert ready.memory.used() == {f'{number:064x}' for number in (1, 2, 3)}
    assert ready.learner.shown.round == 1
    # a whole policy is not trained again
    assert ready.trained == (1 if method != 'set_trained' else 2)


def test_announcements_come_again_at_start(ready):
    first = ready.round(1, 2, 3)
    ready.announced.clear()
    ready.restart()
    assert ready.announced == [first]


@pytest.fixture
def following(ready):
    """A learner that builds on what a canary promotes."""
    ready.set(router='/policy_router')
    ready.come_back()
    return ready


def next_parent(rig: LearnerRig, *numbers: int) -> str:
    """Run a round on some episodes; return what it builds on."""
    rig.announce(*numbers)
    rig.finish(ScanJob)
    parent = rig.learner.shown.parent
    for kind in (ConvertJob, TrainJob, PublishJob):
        rig.finish(kind)
    return parent


def test_a_promotion_that_a_learner_did_not_hear_is_seen_in_what_slot_a_serves(following):
    rig = following
    assert next_parent(rig, 1, 2, 3) == PARENT
    first = rig.learner.shown.latest
    # it was away while the version was promoted, watched and finished
    rig.serves(first)
    assert next_parent(rig, 4, 5, 6) == first
    rig.come_back()
    assert rig.learner.shown.parent == first


def test_a_rollback_that_a_learner_did_not_hear_is_seen_in_what_slot_a_serves(following):
    rig = following
    next_parent(rig, 1, 2, 3)
    first = rig.learner.shown.latest
    rig.accept(first)
    assert rig.learner.shown.parent == first
    # the candidate is watched, and slot a serves what it served
    rig.serves(PARENT, watched=first)
    assert rig.learner.shown.parent == first
    # another rollout runs: the first one was rolled back meanwhile
    rig.serves(PARENT)
    assert next_parent(rig, 4, 5, 6) == PARENT


def test_a_policy_of_others_in_slot_a_changes_nothing(following):
    rig = following
    next_parent(rig, 1, 2, 3)
    first = rig.learner.shown.latest
    rig.accept(first)
    rig.serves('other@00000000000000ff')
    assert rig.learner.shown.parent == first

# SPDX-License-Identifier: Apache-2.0
"""Servers start again and serve the policy of their start: the loop puts back what it gave."""

from __future__ import annotations

import threading

import pytest
from support.loop.played_fleet import events, finish_a_round, steps, V1, V2, V3, version

from lerobot_serve.tools.loop import observing
from lerobot_serve.tools.loop.conductor import Conductor
from lerobot_serve.tools.loop.decisions import LoopStep
from lerobot_serve.tools.loop.journal import Journal
from lerobot_serve.tools.loop.settings import RETRY_S


@pytest.mark.parametrize('phase', ['running', 'promoted'])
def test_a_candidate_whose_server_starts_again_is_started_again(fleet, settings, conduct, phase):
    fleet.versions = [version(V2, V1)]
    conductor = conduct()
    assert steps(conductor, 2) == [LoopStep.GATE, LoopStep.START]
    fleet.phase, fleet.is_watched = phase, phase == 'promoted'
    assert conductor.take_step() is LoopStep.WAIT
    fleet.restart('b')
    # not at once: it may end again
    assert conductor.take_step() is LoopStep.WAIT
    fleet.now_s += RETRY_S
    assert conductor.take_step() is LoopStep.START
    assert fleet.slots['b'] == V2
    assert 'candidate_lost' in events(settings)


def test_the_rollout_of_a_person_that_has_lost_its_candidate_waits(fleet, settings, conduct):
    fleet.versions = [version(V2, V1)]
    fleet.planned, fleet.phase = 'mine@00000000000000ff', 'waiting'
    assert steps(conduct(), 2) == [LoopStep.WAIT] * 2
    assert not fleet.ran


@pytest.mark.parametrize('phase', ['off', 'running', 'rolled_back'])
def test_a_champion_whose_server_starts_again_is_served_again(fleet, settings, conduct, phase):
    finish_a_round(fleet, conduct(), V2, V1)
    if phase != 'off':
        fleet.slots['b'], fleet.planned, fleet.phase = V3, V3, phase
    fleet.restart('a')
    # also by a conductor that has not seen it
    conductor = conduct()
    assert steps(conductor, 2) == [LoopStep.RESTORE, LoopStep.WAIT]
    assert fleet.ran[-1] == ['swap', '/a/policy_server', V2, '--wait', '--yes']
    assert fleet.slots['a'] == V2
    assert 'restored' in events(settings)


def test_a_champion_is_known_also_if_its_finish_was_not_recorded(fleet, settings, conduct):
    fleet.versions, fleet.slots['a'] = [version(V2, V1)], V2
    assert conduct().take_step() is LoopStep.WAIT
    assert events(settings) == ['champion', 'idle', 'new_version', 'adopted']
    fleet.restart('a')
    conductor = conduct()
    assert conductor.take_step() is LoopStep.RESTORE
    assert fleet.slots['a'] == V2


def test_a_restore_that_changes_nothing_is_not_repeated_without_a_pause(fleet, settings, conduct):
    finish_a_round(fleet, conduct(), V2, V1)
    fleet.restart('a')
    fleet.changes_nothing = True
    assert steps(conduct(), 3) == [LoopStep.RESTORE, LoopStep.WAIT, LoopStep.WAIT]


def test_a_champion_that_was_rolled_back_is_not_served_again(fleet, settings, conduct):
    conductor = conduct()
    finish_a_round(fleet, conductor, V2, V1)
    fleet.phase, fleet.slots['b'] = 'rolled_back', V2
    conductor.take_step()
    fleet.restart('a')
    assert steps(conductor, 2) == [LoopStep.WAIT] * 2


def test_another_policy_that_a_person_put_into_slot_a_stays(fleet, settings, conduct):
    conductor = conduct()
    finish_a_round(fleet, conductor, V2, V1)
    fleet.slots['a'] = 'mine@00000000000000ff'
    assert steps(conductor, 2) == [LoopStep.WAIT] * 2


@pytest.mark.parametrize(
    ('is_watched', 'step'), [(True, LoopStep.RESTORE), (False, LoopStep.FINISH)]
)
def test_a_champion_to_go_back_to_is_served_again(fleet, settings, conduct, is_watched, step):
    """After the watch `finish` replaces it."""
    conductor = conduct()
    finish_a_round(fleet, conductor, V2, V1)
    fleet.slots['b'], fleet.planned = V3, V3
    fleet.phase, fleet.is_watched = 'promoted', is_watched
    fleet.restart('a')
    assert conductor.take_step() is step
    assert fleet.slots['a'] == (V2 if is_watched else V3)


def start(conductor: Conductor) -> Conductor:
    """Let a conductor record that it starts."""
    stop = threading.Event()
    stop.set()
    conductor.run(stop)
    return conductor


@pytest.mark.parametrize(('base', 'restores'), [(V1, True), ('base@00000000000000bb', False)])
def test_a_policy_of_the_start_that_a_person_changed_stays(
    fleet, settings, conduct, monkeypatch, base, restores
):
    finish_a_round(fleet, start(conduct()), V2, V1)
    monkeypatch.setattr(observing, 'fingerprint', lambda _: base)
    fleet.slots['a'] = base
    conductor = start(conduct())
    assert conductor.take_step() is (LoopStep.RESTORE if restores else LoopStep.WAIT)
    assert fleet.slots['a'] == (V2 if restores else base)
    # nor later
    assert start(conduct()).take_step() is LoopStep.WAIT


def test_a_journal_from_before_restores_its_champion(fleet, settings, conduct):
    """A fleet must not lose its champion with an update."""
    with Journal(settings.folder) as journal:
        journal.add('loop_started', text='store')
        journal.add('finished', V2)
    fleet.versions = [version(V2, V1)]
    assert start(conduct()).take_step() is LoopStep.RESTORE


@pytest.mark.parametrize('phase', ['running', 'promoted'])
def test_a_version_that_a_person_resumed_counts_as_rolled_back_no_more(
    fleet, settings, conduct, phase
):
    conductor = conduct()
    fleet.versions = [version(V2, V1)]
    assert steps(conductor, 2) == [LoopStep.GATE, LoopStep.START]
    fleet.phase = 'rolled_back'
    conductor.take_step()
    # its server starts again, and the plan waits: the rollback holds
    fleet.phase = 'waiting'
    conductor.take_step()
    assert 'tried_again' not in events(settings)
    fleet.phase, fleet.is_watched = phase, phase == 'promoted'
    assert conductor.take_step() is LoopStep.WAIT
    fleet.phase, fleet.is_watched = 'promoted', False
    assert conductor.take_step() is LoopStep.FINISH
    fleet.restart('a')
    assert conductor.take_step() is LoopStep.RESTORE
    assert fleet.slots['a'] == V2
    assert events(settings).count('tried_again') == 1


def test_a_lost_candidate_that_was_deleted_does_not_stop_the_loop(fleet, settings, conduct):
    fleet.versions = [version(V2, V1)]
    conductor = conduct()
    assert steps(conductor, 2) == [LoopStep.GATE, LoopStep.START]
    fleet.restart('b')
    fleet.versions = [version(V3, V1)]
    fleet.now_s += RETRY_S
    assert steps(conductor, 2) == [LoopStep.GATE, LoopStep.START]
    assert fleet.slots['b'] == V3

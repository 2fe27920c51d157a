# SPDX-License-Identifier: Apache-2.0
"""The conductor takes one step at a time, by verbs, and goes on after failures."""

from __future__ import annotations

from dataclasses import replace
import threading

import pytest
from support.loop.played_fleet import events, record_bags, steps, V1, V2, V3, version

from lerobot_serve.tools.loop.decisions import LoopStep
from lerobot_serve.tools.loop.journal import read_journal
from lerobot_serve.tools.loop.settings import RETRY_S


def test_a_version_goes_from_the_store_to_all_robots(fleet, settings, conduct):
    conductor = conduct()
    assert steps(conductor, 2) == [LoopStep.WAIT] * 2
    fleet.versions = [version(V2, V1)]
    assert steps(conductor, 3) == [LoopStep.GATE, LoopStep.START, LoopStep.WAIT]
    gate, start = fleet.ran
    bags = [str(settings.recordings / f'bag_{number}') for number in (1, 2)]
    assert gate == [
        *('gate', *bags, '--candidate', str(settings.store / V2)),
        *('--parent', str(settings.champion), '--records', str(settings.gates), '--json'),
    ]
    assert start[:4] == ['rollout', 'start', str(settings.store / V2), '--plan=25,50,100']
    assert '--yes' in start
    fleet.phase, fleet.is_watched = 'promoted', True
    assert conductor.take_step() is LoopStep.WAIT
    fleet.is_watched = False
    assert steps(conductor, 2) == [LoopStep.FINISH, LoopStep.WAIT]
    assert fleet.slots == {'a': V2, 'b': V2}
    assert events(settings) == [
        *('champion', 'idle', 'new_version', 'gate_admitted', 'rollout_started', 'on_trial'),
        *('promoted', 'watched', 'finished', 'champion', 'idle'),
    ]


def test_the_parent_of_a_later_round_is_a_version_of_the_store(fleet, settings, conduct):
    fleet.slots = {'a': V2, 'b': V2}
    fleet.versions = [version(V2, V1), version(V3, V2)]
    assert conduct().take_step() is LoopStep.GATE
    (gate,) = fleet.ran
    assert gate[gate.index('--parent') + 1] == str(settings.store / V2)


@pytest.mark.parametrize('verdict', ['refused', 'held'])
def test_one_that_its_gate_refuses_or_holds_drives_nobody(fleet, settings, conduct, verdict):
    fleet.versions, fleet.gate_status, fleet.verdict = [version(V2, V1)], 3, verdict
    conductor = conduct()
    assert steps(conductor, 3) == [LoopStep.GATE, LoopStep.WAIT, LoopStep.WAIT]
    assert [each for each in events(settings) if 'gate' in each] == [f'gate_{verdict}']
    # and it is not compared again after a restart
    assert conduct().take_step() is LoopStep.WAIT
    assert [words[0] for words in fleet.ran] == ['gate']


def test_versions_and_champion_are_recorded_once_also_after_a_restart(fleet, settings, conduct):
    fleet.versions, fleet.gate_status = [version(V2, V1)], 3
    for _ in range(3):
        steps(conduct(), 2)
    found = events(settings)
    assert (found.count('new_version'), found.count('champion')) == (1, 1)
    fleet.versions.append(version(V3, V1))
    fleet.slots['a'] = V2
    steps(conduct(), 2)
    found = events(settings)
    assert (found.count('new_version'), found.count('champion')) == (2, 2)


def test_with_too_few_episodes_it_waits_for_more(fleet, settings, conduct):
    fleet.versions, fleet.gate_status = [version(V2, V1)], 4
    settings_wide = replace(settings, gate_recordings=100)
    conductor = conduct()
    conductor._settings = settings_wide
    assert steps(conductor, 3) == [LoopStep.GATE, LoopStep.WAIT, LoopStep.WAIT]
    fleet.now_s += 10_000
    # the same bags would give the same result
    assert conductor.take_step() is LoopStep.WAIT
    record_bags(settings.recordings, 9)
    fleet.gate_status = 0
    assert steps(conductor, 2) == [LoopStep.GATE, LoopStep.START]


def test_with_too_few_episodes_newer_bags_count_also_where_no_more_are_taken(
    fleet, settings, conduct
):
    fleet.versions, fleet.gate_status = [version(V2, V1)], 4
    conductor = conduct()
    assert steps(conductor, 2) == [LoopStep.GATE, LoopStep.WAIT]
    newer = settings.recordings / 'newer'
    newer.mkdir()
    (newer / 'metadata.yaml').touch()
    # but not each time that the recorder ends an episode
    assert conductor.take_step() is LoopStep.WAIT
    fleet.now_s += RETRY_S
    assert conductor.take_step() is LoopStep.GATE


def test_a_gate_against_another_champion_is_not_repeated_without_a_pause(fleet, settings, conduct):
    fleet.versions, fleet.compared_with = [version(V2, V1)], V3
    conductor = conduct()
    assert steps(conductor, 5) == [LoopStep.WAIT] * 5
    assert len(fleet.ran) == 1
    (failed,) = [e for e in read_journal(settings.folder) if e.event == 'gate_failed']
    assert f'is {V3}, and slot a serves {V1}' in failed.text
    assert '--champion' in failed.text


def test_a_gate_without_a_record_is_not_repeated_without_a_pause(fleet, settings, conduct):
    fleet.versions, fleet.writes_records = [version(V2, V1)], False
    assert steps(conduct(), 5) == [LoopStep.WAIT] * 5
    assert len(fleet.ran) == 1


def test_a_step_that_changes_nothing_is_not_repeated_without_a_pause(fleet, settings, conduct):
    fleet.phase, fleet.slots, fleet.changes_nothing = 'promoted', {'a': V1, 'b': V2}, True
    conductor = conduct()
    assert steps(conductor, 4) == [LoopStep.FINISH, LoopStep.WAIT, LoopStep.WAIT, LoopStep.WAIT]
    fleet.now_s += RETRY_S
    assert steps(conductor, 2) == [LoopStep.FINISH, LoopStep.WAIT]
    fleet.now_s += RETRY_S
    assert conductor.take_step() is LoopStep.WAIT


def test_one_that_was_rolled_back_is_not_started_again_also_after_a_restart(
    fleet, settings, conduct
):
    fleet.versions = [version(V2, V1)]
    conductor = conduct()
    steps(conductor, 2)
    fleet.phase = 'rolled_back'
    assert steps(conductor, 2) == [LoopStep.WAIT] * 2
    assert events(settings).count('rolled_back') == 1
    again = conduct()
    assert steps(again, 2) == [LoopStep.WAIT] * 2
    assert events(settings).count('rolled_back') == 1
    # the next one is
    fleet.versions.append(version(V3, V1))
    assert steps(again, 2) == [LoopStep.GATE, LoopStep.START]


@pytest.mark.parametrize('name', ['gate', 'rollout start', 'rollout finish'])
def test_a_step_that_fails_is_tried_again_later_and_later(fleet, settings, conduct, name):
    fleet.versions = [version(V2, V1)]
    if name != 'gate':
        fleet.gate(['gate', '--candidate', str(settings.store / V2)])
    if name == 'rollout finish':
        fleet.slots['b'], fleet.phase = V2, 'promoted'
    conductor = conduct()
    fleet.statuses = {name: 1}
    assert conductor.take_step() is LoopStep.WAIT
    for wait_s in (RETRY_S, 2 * RETRY_S, 4 * RETRY_S):
        ran = len(fleet.ran)
        fleet.now_s += wait_s - 0.1
        assert conductor.take_step() is LoopStep.WAIT and len(fleet.ran) == ran
        fleet.now_s += 0.2
        assert conductor.take_step() is LoopStep.WAIT and len(fleet.ran) == ran + 1
    fleet.statuses, fleet.now_s = {}, fleet.now_s + 1000
    assert conductor.take_step() is not LoopStep.WAIT
    (failed,) = {event for event in events(settings) if event.endswith('_failed')}
    assert failed.split('_')[0] in name


def test_without_a_router_nothing_moves(fleet, settings, conduct):
    fleet.versions, fleet.is_there = [version(V2, V1)], False
    conductor = conduct()
    assert steps(conductor, 3) == [LoopStep.WAIT] * 3
    assert not fleet.ran
    fleet.is_there = True
    assert conductor.take_step() is LoopStep.GATE
    fleet.is_there = False
    assert conductor.take_step() is LoopStep.WAIT
    assert events(settings) == [
        *('new_version', 'champion', 'idle', 'gate_admitted', 'router_unknown')
    ]


def test_without_recordings_it_waits(fleet, settings, conduct):
    fleet.versions = [version(V2, V1)]
    for bag in settings.recordings.iterdir():
        (bag / 'metadata.yaml').unlink()
    assert conduct().take_step() is LoopStep.WAIT
    assert not fleet.ran


@pytest.mark.parametrize('kill_after', range(8))
def test_a_conductor_that_is_killed_anywhere_goes_on(fleet, settings, conduct, kill_after):
    """Each step is done once, whenever another conductor takes over."""
    fleet.versions = [version(V2, V1)]
    scenes = {3: {'phase': 'promoted', 'is_watched': True}, 4: {'is_watched': False}}
    conductor = conduct()
    for number in range(8):
        vars(fleet).update(scenes.get(number, {}))
        conductor.take_step()
        if number == kill_after:
            conductor = conduct()
    assert [' '.join(words[:2]) if words[0] == 'rollout' else words[0] for words in fleet.ran] == [
        'gate',
        'rollout start',
        'rollout finish',
    ]
    assert fleet.slots == {'a': V2, 'b': V2}


def test_a_stale_version_is_refused_once_with_what_to_do(fleet, settings, conduct):
    fleet.versions = [version(V3, V2)]
    assert steps(conduct(), 3) == [LoopStep.WAIT] * 3
    (refused,) = [entry for entry in read_journal(settings.folder) if entry.event == 'stale']
    assert refused.version == V3
    assert f'was trained from {V2}, and not from {V1}' in refused.text
    assert 'to try this one all the same: `lerobot-serve rollout start`' in refused.text
    assert not fleet.ran


def test_it_ends_when_it_is_asked_to(fleet, settings, conduct):
    stop = threading.Event()
    stop.set()
    conduct().run(stop)
    assert events(settings) == ['loop_started', 'loop_ended']

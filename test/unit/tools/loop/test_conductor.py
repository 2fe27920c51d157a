# SPDX-License-Identifier: Apache-2.0
"""The conductor takes one step at a time, by verbs, and goes on after failures and restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
import json
from pathlib import Path
import threading

import pytest

from lerobot_serve.router.canary.gate_record import GateRecord, write_record
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.loop import observing
from lerobot_serve.tools.loop.conductor import Conductor
from lerobot_serve.tools.loop.decisions import rollout_facts, RolloutFacts, Step, Version
from lerobot_serve.tools.loop.journal import Journal, read_journal
from lerobot_serve.tools.loop.settings import LoopSettings, RETRY_S
from lerobot_serve.tools.loop.verb_process import VerbResult
from lerobot_serve.tools.operate.fleet_state import CanaryView, ReplicaView, RouterView, SlotView

V1, V2, V3 = 'reach@0000000000000001', 'reach@0000000000000002', 'reach@0000000000000003'


@dataclass
class Fleet:
    """A router, a store and the verbs, played."""

    folder: Path
    phase: str = 'off'
    is_watched: bool = False
    slots: dict[str, str] = field(default_factory=lambda: {'a': V1, 'b': V1})
    versions: list[Version] = field(default_factory=list)
    gate_status: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    ran: list[list[str]] = field(default_factory=list)
    is_there: bool = True
    planned: str = ''
    # of faults
    compared_with: str = ''
    writes_records: bool = True
    changes_nothing: bool = False
    verdict: str = ''
    now_s: float = 0.0

    def run(self, words: list[str], limit_s: float) -> VerbResult:
        self.ran.append(words)
        name = ' '.join(words[:2]) if words[0] == 'rollout' else words[0]
        status = self.statuses.get(name, 0)
        if status:
            return VerbResult(status, '', 'lerobot-serve: it failed\n')
        return getattr(self, name.replace(' ', '_'))(words)

    def observe(self) -> RolloutFacts:
        if not self.is_there:
            return RolloutFacts(text='no router')
        phase = CanaryPhase(self.phase)
        canary = CanaryView(
            phase,
            candidate=self.slots['b'],
            planned=self.planned,
            is_watched=self.is_watched,
        )
        slots = tuple(
            SlotView(
                slot,
                policy=self.slots[slot],
                replicas=(ReplicaView(f'/{slot}/policy_server', policy=self.slots[slot]),),
            )
            for slot in 'ab'
        )
        return rollout_facts(RouterView('/policy_router', slots=slots, canary=canary))

    def gate(self, words: list[str]) -> VerbResult:
        candidate = Path(words[words.index('--candidate') + 1]).name
        verdict = self.verdict or {0: 'passed', 3: 'refused', 4: 'too_few'}[self.gate_status]
        parent = self.compared_with or self.slots['a']
        record = GateRecord(candidate, parent, verdict, 'why', 30, 100, '', '')
        if self.writes_records:
            write_record(self.folder / 'gates', record)
        return VerbResult(self.gate_status, json.dumps({'text': 'why'}), '')

    def rollout_start(self, words: list[str]) -> VerbResult:
        self.slots['b'], self.phase = Path(words[2]).name, 'running'
        self.planned = self.slots['b']
        return VerbResult(0, '', '')

    def rollout_finish(self, words: list[str]) -> VerbResult:
        if not self.changes_nothing:
            self.slots['a'], self.phase = self.slots['b'], 'off'
            self.planned = ''
        return VerbResult(0, '', '')

    def swap(self, words: list[str]) -> VerbResult:
        assert words[1] == '/a/policy_server'
        if not self.changes_nothing:
            self.slots['a'] = words[2]
        return VerbResult(0, '', '')

    def restart(self, slot: str) -> None:
        """Let the server of a slot start again: it serves the policy of its parameters."""
        self.slots[slot] = V1
        if slot == 'b' and self.planned:
            self.phase = 'waiting'


@pytest.fixture
def fleet(tmp_path, monkeypatch) -> Fleet:
    made = Fleet(tmp_path)
    monkeypatch.setattr(observing, 'versions', lambda _: made.versions)
    monkeypatch.setattr(observing, 'fingerprint', lambda _: V1)
    return made


@pytest.fixture
def settings(tmp_path) -> LoopSettings:
    recordings = tmp_path / 'bags'
    record_bags(recordings, 3)
    return LoopSettings(
        folder=tmp_path / 'loop',
        store=tmp_path / 'store',
        gates=tmp_path / 'gates',
        recordings=recordings,
        champion=tmp_path / 'v1',
        gate_recordings=2,
    )


def record_bags(folder: Path, count: int) -> None:
    for number in range(count):
        bag = folder / f'bag_{number}'
        bag.mkdir(parents=True, exist_ok=True)
        (bag / 'metadata.yaml').touch()


@pytest.fixture
def conduct(fleet, settings):
    """Returns a conductor; the one before has ended."""
    opened: list[Journal] = []

    def make() -> Conductor:
        for journal in opened[-1:]:
            journal.__exit__(None, None, None)
        opened.append(Journal(settings.folder))
        return Conductor(
            settings, opened[-1], fleet.observe, fleet.run, lambda _: None, lambda: fleet.now_s
        )

    yield make
    opened[-1].__exit__(None, None, None)


def events(settings: LoopSettings) -> list[str]:
    return [entry.event for entry in read_journal(settings.folder)]


def steps(conductor: Conductor, count: int) -> list[Step]:
    return [conductor.take_step() for _ in range(count)]


def test_a_version_goes_from_the_store_to_all_robots(fleet, settings, conduct):
    conductor = conduct()
    assert steps(conductor, 2) == [Step.WAIT] * 2
    fleet.versions = [Version(V2, V1, '1')]
    assert steps(conductor, 3) == [Step.GATE, Step.START, Step.WAIT]
    gate, start = fleet.ran
    bags = [str(settings.recordings / f'bag_{number}') for number in (1, 2)]
    assert gate == [
        *('gate', *bags, '--candidate', str(settings.store / V2)),
        *('--parent', str(settings.champion), '--records', str(settings.gates), '--json'),
    ]
    assert start[:4] == ['rollout', 'start', str(settings.store / V2), '--plan=25,50,100']
    assert '--yes' in start
    fleet.phase, fleet.is_watched = 'promoted', True
    assert conductor.take_step() is Step.WAIT
    fleet.is_watched = False
    assert steps(conductor, 2) == [Step.FINISH, Step.WAIT]
    assert fleet.slots == {'a': V2, 'b': V2}
    assert events(settings) == [
        *('champion', 'idle', 'new_version', 'gate_admitted', 'rollout_started', 'on_trial'),
        *('promoted', 'watched', 'finished', 'champion', 'idle'),
    ]


def test_the_parent_of_a_later_round_is_a_version_of_the_store(fleet, settings, conduct):
    fleet.slots = {'a': V2, 'b': V2}
    fleet.versions = [Version(V2, V1, '1'), Version(V3, V2, '2')]
    assert conduct().take_step() is Step.GATE
    (gate,) = fleet.ran
    assert gate[gate.index('--parent') + 1] == str(settings.store / V2)


def test_one_that_its_gate_refuses_drives_nobody(fleet, settings, conduct):
    fleet.versions, fleet.gate_status = [Version(V2, V1, '1')], 3
    conductor = conduct()
    assert steps(conductor, 3) == [Step.GATE, Step.WAIT, Step.WAIT]
    assert 'gate_refused' in events(settings)
    # and it is not compared again after a restart
    assert conduct().take_step() is Step.WAIT
    assert [words[0] for words in fleet.ran] == ['gate']


def test_a_version_that_its_gate_holds_is_not_recorded_as_refused(fleet, settings, conduct):
    fleet.versions, fleet.gate_status, fleet.verdict = [Version(V2, V1, '1')], 3, 'held'
    assert steps(conduct(), 2) == [Step.GATE, Step.WAIT]
    assert 'gate_held' in events(settings) and 'gate_refused' not in events(settings)


def test_versions_and_champion_are_recorded_once_also_after_a_restart(fleet, settings, conduct):
    fleet.versions, fleet.gate_status = [Version(V2, V1, '1')], 3
    for _ in range(3):
        steps(conduct(), 2)
    found = events(settings)
    assert (found.count('new_version'), found.count('champion')) == (1, 1)
    fleet.versions.append(Version(V3, V1, '2'))
    fleet.slots['a'] = V2
    steps(conduct(), 2)
    found = events(settings)
    assert (found.count('new_version'), found.count('champion')) == (2, 2)


def test_with_too_few_episodes_it_waits_for_more(fleet, settings, conduct):
    fleet.versions, fleet.gate_status = [Version(V2, V1, '1')], 4
    settings_wide = replace(settings, gate_recordings=100)
    conductor = conduct()
    conductor._settings = settings_wide
    assert steps(conductor, 3) == [Step.GATE, Step.WAIT, Step.WAIT]
    fleet.now_s += 10_000
    # the same bags would give the same result
    assert conductor.take_step() is Step.WAIT
    record_bags(settings.recordings, 9)
    fleet.gate_status = 0
    assert steps(conductor, 2) == [Step.GATE, Step.START]


def test_with_too_few_episodes_newer_bags_count_also_where_no_more_are_taken(
    fleet, settings, conduct
):
    fleet.versions, fleet.gate_status = [Version(V2, V1, '1')], 4
    conductor = conduct()
    assert steps(conductor, 2) == [Step.GATE, Step.WAIT]
    newer = settings.recordings / 'newer'
    newer.mkdir()
    (newer / 'metadata.yaml').touch()
    # but not each time that the recorder ends an episode
    assert conductor.take_step() is Step.WAIT
    fleet.now_s += RETRY_S
    assert conductor.take_step() is Step.GATE


def test_a_gate_against_another_champion_is_not_repeated_without_a_pause(fleet, settings, conduct):
    fleet.versions, fleet.compared_with = [Version(V2, V1, '1')], V3
    conductor = conduct()
    assert steps(conductor, 5) == [Step.WAIT] * 5
    assert len(fleet.ran) == 1
    (failed,) = [e for e in read_journal(settings.folder) if e.event == 'gate_failed']
    assert f'is {V3}, and slot a serves {V1}' in failed.text
    assert '--champion' in failed.text


def test_a_gate_without_a_record_is_not_repeated_without_a_pause(fleet, settings, conduct):
    fleet.versions, fleet.writes_records = [Version(V2, V1, '1')], False
    assert steps(conduct(), 5) == [Step.WAIT] * 5
    assert len(fleet.ran) == 1


def test_a_step_that_changes_nothing_is_not_repeated_without_a_pause(fleet, settings, conduct):
    fleet.phase, fleet.slots, fleet.changes_nothing = 'promoted', {'a': V1, 'b': V2}, True
    conductor = conduct()
    assert steps(conductor, 4) == [Step.FINISH, Step.WAIT, Step.WAIT, Step.WAIT]
    fleet.now_s += RETRY_S
    assert steps(conductor, 2) == [Step.FINISH, Step.WAIT]
    fleet.now_s += RETRY_S
    assert conductor.take_step() is Step.WAIT


def test_one_that_was_rolled_back_is_not_started_again_also_after_a_restart(
    fleet, settings, conduct
):
    fleet.versions = [Version(V2, V1, '1')]
    conductor = conduct()
    steps(conductor, 2)
    fleet.phase = 'rolled_back'
    assert steps(conductor, 2) == [Step.WAIT] * 2
    assert events(settings).count('rolled_back') == 1
    again = conduct()
    assert steps(again, 2) == [Step.WAIT] * 2
    assert events(settings).count('rolled_back') == 1
    # the next one is
    fleet.versions.append(Version(V3, V1, '2'))
    assert steps(again, 2) == [Step.GATE, Step.START]


@pytest.mark.parametrize('name', ['gate', 'rollout start', 'rollout finish'])
def test_a_step_that_fails_is_tried_again_later_and_later(fleet, settings, conduct, name):
    fleet.versions = [Version(V2, V1, '1')]
    if name != 'gate':
        fleet.gate(['gate', '--candidate', str(settings.store / V2)])
    if name == 'rollout finish':
        fleet.slots['b'], fleet.phase = V2, 'promoted'
    conductor = conduct()
    fleet.statuses = {name: 1}
    assert conductor.take_step() is Step.WAIT
    for wait_s in (RETRY_S, 2 * RETRY_S, 4 * RETRY_S):
        ran = len(fleet.ran)
        fleet.now_s += wait_s - 0.1
        assert conductor.take_step() is Step.WAIT and len(fleet.ran) == ran
        fleet.now_s += 0.2
        assert conductor.take_step() is Step.WAIT and len(fleet.ran) == ran + 1
    fleet.statuses, fleet.now_s = {}, fleet.now_s + 1000
    assert conductor.take_step() is not Step.WAIT
    (failed,) = {event for event in events(settings) if event.endswith('_failed')}
    assert failed.split('_')[0] in name


def test_without_a_router_nothing_moves(fleet, settings, conduct):
    fleet.versions, fleet.is_there = [Version(V2, V1, '1')], False
    conductor = conduct()
    assert steps(conductor, 3) == [Step.WAIT] * 3
    assert not fleet.ran
    fleet.is_there = True
    assert conductor.take_step() is Step.GATE
    fleet.is_there = False
    assert conductor.take_step() is Step.WAIT
    assert events(settings) == [
        *('new_version', 'champion', 'idle', 'gate_admitted', 'router_unknown')
    ]


def test_without_recordings_it_waits(fleet, settings, conduct):
    fleet.versions = [Version(V2, V1, '1')]
    for bag in settings.recordings.iterdir():
        (bag / 'metadata.yaml').unlink()
    assert conduct().take_step() is Step.WAIT
    assert not fleet.ran


@pytest.mark.parametrize('kill_after', range(8))
def test_a_conductor_that_is_killed_anywhere_goes_on(fleet, settings, conduct, kill_after):
    """Each step is done once, whenever another conductor takes over."""
    fleet.versions = [Version(V2, V1, '1')]
    scenes: list[Callable[[], None]] = [
        lambda: None,
        lambda: None,
        lambda: None,
        lambda: vars(fleet).update(phase='promoted', is_watched=True),
        lambda: vars(fleet).update(is_watched=False),
        lambda: None,
        lambda: None,
        lambda: None,
    ]
    conductor = conduct()
    for number, scene in enumerate(scenes):
        scene()
        conductor.take_step()
        if number == kill_after:
            conductor = conduct()
    assert [' '.join(words[:2]) if words[0] == 'rollout' else words[0] for words in fleet.ran] == [
        'gate',
        'rollout start',
        'rollout finish',
    ]
    assert fleet.slots == {'a': V2, 'b': V2}


def finish_a_round(fleet: Fleet, conductor: Conductor, version: str, parent: str) -> None:
    fleet.versions.append(Version(version, parent, str(len(fleet.versions))))
    assert steps(conductor, 2) == [Step.GATE, Step.START]
    fleet.phase = 'promoted'
    assert conductor.take_step() is Step.FINISH


@pytest.mark.parametrize('phase', ['running', 'promoted'])
def test_a_candidate_whose_server_starts_again_is_started_again(fleet, settings, conduct, phase):
    fleet.versions = [Version(V2, V1, '1')]
    conductor = conduct()
    assert steps(conductor, 2) == [Step.GATE, Step.START]
    fleet.phase, fleet.is_watched = phase, phase == 'promoted'
    assert conductor.take_step() is Step.WAIT
    fleet.restart('b')
    # not at once: it may end again
    assert conductor.take_step() is Step.WAIT
    fleet.now_s += RETRY_S
    assert conductor.take_step() is Step.START
    assert fleet.slots['b'] == V2
    assert 'candidate_lost' in events(settings)


def test_the_rollout_of_a_person_that_has_lost_its_candidate_waits(fleet, settings, conduct):
    fleet.versions = [Version(V2, V1, '1')]
    fleet.planned, fleet.phase = 'mine@00000000000000ff', 'waiting'
    assert steps(conduct(), 2) == [Step.WAIT] * 2
    assert not fleet.ran


@pytest.mark.parametrize('phase', ['off', 'running', 'rolled_back'])
def test_a_champion_whose_server_starts_again_is_served_again(fleet, settings, conduct, phase):
    finish_a_round(fleet, conduct(), V2, V1)
    if phase != 'off':
        fleet.slots['b'], fleet.planned, fleet.phase = V3, V3, phase
    fleet.restart('a')
    # also by a conductor that has not seen it
    conductor = conduct()
    assert steps(conductor, 2) == [Step.RESTORE, Step.WAIT]
    assert fleet.ran[-1] == ['swap', '/a/policy_server', V2, '--wait', '--yes']
    assert fleet.slots['a'] == V2
    assert 'restored' in events(settings)


def test_a_champion_is_known_also_if_its_finish_was_not_recorded(fleet, settings, conduct):
    fleet.versions, fleet.slots['a'] = [Version(V2, V1, '1')], V2
    assert conduct().take_step() is Step.WAIT
    assert events(settings) == ['champion', 'idle', 'new_version', 'adopted']
    fleet.restart('a')
    conductor = conduct()
    assert conductor.take_step() is Step.RESTORE
    assert fleet.slots['a'] == V2


def test_a_restore_that_changes_nothing_is_not_repeated_without_a_pause(fleet, settings, conduct):
    finish_a_round(fleet, conduct(), V2, V1)
    fleet.restart('a')
    fleet.changes_nothing = True
    assert steps(conduct(), 3) == [Step.RESTORE, Step.WAIT, Step.WAIT]


def test_a_champion_that_was_rolled_back_is_not_served_again(fleet, settings, conduct):
    conductor = conduct()
    finish_a_round(fleet, conductor, V2, V1)
    fleet.phase, fleet.slots['b'] = 'rolled_back', V2
    conductor.take_step()
    fleet.restart('a')
    assert steps(conductor, 2) == [Step.WAIT] * 2


def test_another_policy_that_a_person_put_into_slot_a_stays(fleet, settings, conduct):
    conductor = conduct()
    finish_a_round(fleet, conductor, V2, V1)
    fleet.slots['a'] = 'mine@00000000000000ff'
    assert steps(conductor, 2) == [Step.WAIT] * 2


def test_a_stale_version_is_refused_once_with_what_to_do(fleet, settings, conduct):
    fleet.versions = [Version(V3, V2, '1')]
    assert steps(conduct(), 3) == [Step.WAIT] * 3
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

# SPDX-License-Identifier: Apache-2.0
"""The next step of the loop, in each state of rollout and candidate, and which version it is."""

from __future__ import annotations

from itertools import product

from hypothesis import given, strategies
import pytest
from support.loop.played_fleet import V1, V2, V3, version
from support.tools.operator_states import canary_of, router_of, slot_of

from lerobot_serve.router.canary.gate_record import ADMITTED, GateRecord, VERDICTS
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.loop.decisions import (
    Candidate,
    Choice,
    choose,
    is_tried,
    LoopStep,
    own_rollout,
    RESTORING,
    Rollout,
    rollout_facts,
    RolloutFacts,
    server_to_restore,
    STEPS,
)
from lerobot_serve.tools.operate.fleet_state import RouterView


def record(candidate: str, parent: str = V1, verdict: str = 'passed') -> GateRecord:
    return GateRecord(candidate, parent, verdict, 'why', 30, 100, '', '')


def router(
    phase: CanaryPhase, *, is_watched: bool = False, a: str = V1, b: str = V2
) -> RouterView:
    canary = canary_of(
        phase, candidate_policy=b, champion_policy=a, text='text', is_watched=is_watched
    )
    slots = (slot_of('a', policy=a), slot_of('b', policy=b))
    return router_of('/policy_router', slots=slots, canary=canary)


def test_each_combination_has_a_step():
    assert {rollout: set(row) for rollout, row in STEPS.items()} == {
        rollout: set(Candidate) for rollout in Rollout
    }


def test_nothing_moves_without_a_router_in_a_trial_or_while_a_way_back_is_kept():
    for rollout in (Rollout.UNKNOWN, Rollout.ON_TRIAL, Rollout.WATCHED):
        assert set(STEPS[rollout].values()) == {LoopStep.WAIT}


def test_a_version_starts_only_behind_its_gate():
    for rollout, row in STEPS.items():
        starting = [each for each, step in row.items() if step is LoopStep.START]
        is_free = rollout in (Rollout.IDLE, Rollout.LOST)
        assert starting == ([Candidate.ADMITTED] if is_free else [])


def test_a_forgotten_champion_comes_first_but_not_in_the_midst_of_a_finish():
    assert set(Rollout) - RESTORING == {Rollout.UNKNOWN, Rollout.PROMOTED}


def test_a_lost_candidate_of_a_person_is_theirs():
    for rollout, planned in product(Rollout, (V1, V2, '')):
        facts = RolloutFacts(rollout, planned=planned)
        found = own_rollout(facts, {V2[-16:]})
        is_theirs = rollout is Rollout.LOST and planned != V2
        assert found is (Rollout.ON_TRIAL if is_theirs else rollout)


@pytest.mark.parametrize(
    ('phase', 'is_watched', 'rollout'),
    [
        (CanaryPhase.OFF, False, Rollout.IDLE),
        (CanaryPhase.WAITING, False, Rollout.ON_TRIAL),
        (CanaryPhase.RUNNING, False, Rollout.ON_TRIAL),
        (CanaryPhase.UNDECIDED, False, Rollout.ON_TRIAL),
        (CanaryPhase.PAUSED, False, Rollout.ON_TRIAL),
        (CanaryPhase.PROMOTED, True, Rollout.WATCHED),
        (CanaryPhase.PROMOTED, False, Rollout.PROMOTED),
        (CanaryPhase.ROLLED_BACK, False, Rollout.IDLE),
    ],
)
def test_each_phase_of_a_canary_is_known(phase, is_watched, rollout):
    facts = rollout_facts(router(phase, is_watched=is_watched))
    assert (facts.rollout, facts.champion, facts.candidate) == (rollout, V1, V2)


def test_a_candidate_that_slot_b_no_longer_serves_is_lost():
    canary = canary_of(
        CanaryPhase.WAITING, candidate_policy=V1, champion_policy=V1, planned_policy=V2
    )
    slots = (slot_of('a', policy=V1), slot_of('b', policy=V1))
    facts = rollout_facts(router_of('/policy_router', slots=slots, canary=canary))
    assert (facts.rollout, facts.planned) == (Rollout.LOST, V2)


def test_a_server_of_slot_a_with_the_policy_of_its_start_is_restored():
    servers = (('/a1', V2), ('/a2', f'renamed@{V1[-16:]}'))
    facts = RolloutFacts(Rollout.IDLE, champion=V2, servers=servers)
    assert server_to_restore(facts, V1, V2) == '/a2'
    # nothing was finished, or its policy of the start is the champion
    assert server_to_restore(facts, V1, '') == ''
    assert server_to_restore(facts, V1, V1) == ''
    # another policy is what a person put there
    assert server_to_restore(facts, V3, V2) == ''
    assert server_to_restore(facts, '', V2) == ''


@pytest.mark.parametrize('phase', CanaryPhase)
def test_a_candidate_is_tried_while_it_has_episodes(phase):
    without = (CanaryPhase.OFF, CanaryPhase.WAITING, CanaryPhase.ROLLED_BACK)
    assert is_tried(RolloutFacts(phase=phase.word, candidate=V2)) is (phase not in without)
    assert not is_tried(RolloutFacts(phase=phase.word))


def test_every_phase_is_in_the_test_above():
    assert len(CanaryPhase) == 7


def test_a_router_of_a_later_version_and_an_empty_slot_are_unknown():
    assert rollout_facts(router(CanaryPhase(99))).rollout is Rollout.UNKNOWN
    assert rollout_facts(router(CanaryPhase.OFF, a='')).rollout is Rollout.UNKNOWN
    assert rollout_facts(router_of('/policy_router')).rollout is Rollout.UNKNOWN


def test_a_finish_that_left_slot_a_without_a_policy_goes_on():
    facts = rollout_facts(router(CanaryPhase.PROMOTED, a=''))
    assert facts.rollout is Rollout.PROMOTED
    assert STEPS[facts.rollout][Candidate.NONE] is LoopStep.FINISH
    for is_watched, phase in ((True, CanaryPhase.PROMOTED), (False, CanaryPhase.RUNNING)):
        found = rollout_facts(router(phase, is_watched=is_watched, a=''))
        assert found.rollout is Rollout.UNKNOWN


@pytest.mark.parametrize(
    ('parents', 'champion', 'barred', 'version_of', 'why_not'),
    [
        # the newest child of the champion, whose server may give it another name
        ({V2: V1, V3: V1}, V1, '', V3, ''),
        ({V2: V1, V3: V1}, f'renamed@{V1[-16:]}', '', V3, ''),
        ({V3: V2}, V1, '', '', f'was trained from {V2}, and not from {V1}'),
        # one that was rolled back is passed over for an older one
        ({V2: V1, V3: V1}, V1, V3[-16:], V2, ''),
        ({V3: V1}, V1, V3[-16:], '', 'was rolled back'),
    ],
)
def test_which_version_is_the_candidate(parents, champion, barred, version_of, why_not):
    found = choose([version(*each) for each in parents.items()], champion, {}, {barred})
    assert found.candidate is (Candidate.UNGATED if version_of else Candidate.NONE)
    assert found.version == version_of and why_not in found.why_not


def test_without_a_champion_nothing_is_chosen_and_nothing_is_said():
    assert choose([version(V2, V1), version(V3, '')], '', {}, ()) == Choice()


@pytest.mark.parametrize('verdict', VERDICTS)
def test_each_verdict_of_a_gate(verdict):
    versions = [version(V2, V1)]
    found = choose(versions, V1, {V2[-16:]: record(V2, verdict=verdict)}, ())
    expected = (
        Candidate.ADMITTED
        if verdict in ADMITTED
        else Candidate.UNGATED
        if verdict == 'too_few'
        else Candidate.NONE
    )
    assert found.candidate is expected


def test_a_gate_against_an_earlier_champion_does_not_count():
    records = {V3[-16:]: record(V3, parent=V2)}
    assert choose([version(V3, V1)], V1, records, ()).candidate is Candidate.UNGATED


names = strategies.sampled_from([V1, V2, V3, 'other@0000000000000004', ''])


@given(
    # a manifest names another parent than its own version
    strategies.lists(
        strategies.tuples(names.filter(bool), names).filter(lambda each: each[0] != each[1]),
        max_size=6,
    ),
    names,
    strategies.dictionaries(names, strategies.tuples(names, strategies.sampled_from(VERDICTS))),
    strategies.sets(names),
)
def test_no_candidate_is_the_champion_barred_stale_or_refused(drawn, champion, gates, barred):
    versions = [version(each, parent) for each, parent in drawn]
    records = {each[-16:]: record(each, *rest) for each, rest in gates.items()}
    found = choose(versions, champion, records, {each[-16:] for each in barred})
    if found.candidate is Candidate.NONE:
        return
    assert found.version != champion and found.version not in barred
    assert any(v.id == found.version and v.parent == champion for v in versions)
    if found.candidate is Candidate.ADMITTED:
        gate = records[found.version[-16:]]
        assert gate.verdict in ADMITTED and gate.parent == champion

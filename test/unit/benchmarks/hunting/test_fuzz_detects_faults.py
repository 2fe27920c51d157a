# SPDX-License-Identifier: Apache-2.0
"""
With a fix taken out, the hunt finds the fault again: each of these was a fault of 0.1.0, or is an
invariant that must not rest on one line without a look-out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import hunt
from benchmarks.hunting.driver import Finding, FuzzEvent, FuzzTarget, play, Script, ScriptLine
from benchmarks.hunting.edge_model import EdgeModel
from benchmarks.hunting.router_model import RouterModel
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.edge.action_queue import ActionQueue
from lerobot_serve.edge.control import authority, pose_tracker
from lerobot_serve.edge.control.playback import ActionPlayback
from lerobot_serve.edge.control.pose_tracker import PoseTracker
from lerobot_serve.edge.decisions import Decision
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.takeover import DeviceState, PersonInput, Takeover
from lerobot_serve.router.data_path import dispatcher
from lerobot_serve.router.data_path.forwarder import RequestForwarder
from lerobot_serve.router.placement import eligibility
from lerobot_serve.router.placement.eligibility import ObstacleKind, SlotUse
from lerobot_serve.router.placement.placement_table import PlacementTable
from lerobot_serve.router.replicas.slot import NO_VERDICT, Slot
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.storage.decisions import DurableDecisions
from lerobot_serve.router.storage.writer import StoreWriter
from lerobot_serve.session.machine import SessionMachine

EDGE, ROUTER = hunt.TARGETS['edge'], hunt.TARGETS['router']
WITHIN_STEPS = 40_000


def found(subject: FuzzTarget, rule: str, seed: int = 1) -> None:
    """
    Hunt until this rule is broken; fail when it is not within so many steps.

    `seed` is one that has found it: other code may need more, and then the next seeds are tried.
    """
    done = 0
    while done < WITHIN_STEPS:
        hunted = subject.hunt(subject.run_steps, seed)
        done += hunted.steps
        if any(finding.rule == rule for finding in hunted.findings):
            return
        seed += hunted.runs
    pytest.fail(f'{rule} was not found within {WITHIN_STEPS} steps')


def nothing(*_: object) -> None:
    """Do nothing."""


def without_limit(limits: MotionLimits, wanted: object, *_: object, **__: object) -> np.ndarray:
    return np.array(wanted, np.float64)


# what is taken out: whose it is, its name, what is there instead; the rule, a seed that finds it
FAULTS = {
    'a hand back that keeps the plans of before': (Requester, 'replan', nothing, 'handed back', 1),
    'a deadman that is not asked for': (
        *(PersonInput, '_deadman_state', lambda *_: DeviceState.READY),
        *('person', 1),
    ),
    'steps without a limit': (MotionLimits, 'nearest', without_limit, 'step', 1),
    'commands too far ahead': (MotionLimits, '_lead_window', nothing, 'lead', 4),
    # an edge that stood still and goes on
    'no silence at all': (PoseTracker, '_begin_silence', nothing, 'silence', 2),
    'samples that waited': (pose_tracker, 'WAITED_SHARE', -9.0, 'silence', 10),
    'a person who waited': (Takeover, 'forget', nothing, 'person', 23),
    'inputs that waited': (ActionPlayback, 'discard', nothing, 'stale', 44),
}
# R8: drains and splits; accepted outcomes that die with the process
FAULTS_OF_ROUTERS = {
    'a drain that is gone after a restart': (
        *(DurableDecisions, 'restore', lambda intent, slots: []),
        *('drained', 17),
    ),
    'a split that is gone after a restart': (
        *(DurableDecisions, 'parameters', lambda intent, held, given: (given, [])),
        *('intent', 1),
    ),
    'an outcome that is not replayed': (SlotStats, 'replay', nothing, 'outcome', 4),
    'an outcome that is not written': (
        *(StoreWriter, 'when_durable', lambda _, on_written: on_written('')),
        *('outcome', 3),
    ),
    'a request without an end': (
        *(RequestForwarder, 'reply_timeout', lambda _, request, step: request.end()),
        *('lost', 1),
    ),
    'a policy that changes without a flag': (
        *(dispatcher, 'with_flags', lambda raw, flags, cleared: raw),
        *('flag', 1),
    ),
    'an episode that loses its slot': (PlacementTable, '_remember', nothing, 'sticky', 30),
}


@pytest.mark.parametrize('fault', [*FAULTS, *FAULTS_OF_ROUTERS])
def test_a_part_that_is_taken_out(monkeypatch, fault):
    owner, name, broken, rule, seed = (FAULTS | FAULTS_OF_ROUTERS)[fault]
    monkeypatch.setattr(owner, name, broken)
    found(EDGE if fault in FAULTS else ROUTER, rule, seed)


# who may move the robot


def rules_without(cause: str) -> tuple[authority.AuthorityRule, ...]:
    return tuple(rule for rule in authority.AUTHORITY_RULES if rule.cause != cause)


def teardown_first() -> tuple[authority.AuthorityRule, ...]:
    """E1: a robot that is given up is torn down, whoever has paused it."""
    teardown = next(
        r for r in reversed(authority.AUTHORITY_RULES) if r.authority.name == 'TEARDOWN'
    )
    dead = teardown._replace(
        applies=lambda g: g.conditions.state is ConnectionState.DEAD
        and g.supply is not authority.ActionSupply.NEVER
    )
    return (dead, *authority.AUTHORITY_RULES)


@pytest.mark.parametrize(
    ('rules', 'rule'),
    [
        (teardown_first, 'authority'),
        (lambda: rules_without('paused'), 'authority'),
        (lambda: rules_without('no_episode'), 'authority'),
        pytest.param(lambda: rules_without('stopped'), 'stop', marks=pytest.mark.slow),
    ],
)
def test_who_may_move_the_robot(monkeypatch, rules, rule):
    monkeypatch.setattr(authority, 'AUTHORITY_RULES', rules())
    found(EDGE, rule, 18 if rule == 'stop' else 1)


@pytest.mark.parametrize(
    ('decision', 'rule'),
    [
        pytest.param(Decision.TAKEN_OVER, 'person', marks=pytest.mark.slow),
        pytest.param(Decision.PAUSED, 'authority', marks=pytest.mark.slow),
        (Decision.LATCHED, 'latch'),
        pytest.param(Decision.STOPPED, 'stop', marks=pytest.mark.slow),
    ],
)
def test_a_decision_that_dies_with_the_process(monkeypatch, decision, rule):
    restart = EdgeModel.restart

    def forget(model: EdgeModel) -> None:
        (model.folder / decision.file).unlink(missing_ok=True)
        restart(model)

    monkeypatch.setitem(EDGE.rules, 'restart', FuzzEvent(1, forget))
    found(EDGE, rule)


def test_a_person_who_outranks_a_pause(monkeypatch):
    rules = sorted(authority.AUTHORITY_RULES, key=lambda rule: rule.cause != 'person_commands')
    monkeypatch.setattr(authority, 'AUTHORITY_RULES', tuple(rules))
    found(EDGE, 'authority')


# what is played


def test_stale_actions(monkeypatch):
    take_fresh = ActionQueue.take_fresh
    monkeypatch.setattr(ActionQueue, 'take_fresh', lambda queue, oldest_ns: take_fresh(queue, 0))
    monkeypatch.setattr(ActionPlayback, '_limit_interpolated_age', lambda playing, oldest_ns: None)
    monkeypatch.setattr(ActionPlayback, 'next', without_age(ActionPlayback.next))
    found(EDGE, 'stale')


def without_age(
    step: Callable[[ActionPlayback, int], object],
) -> Callable[[ActionPlayback, int], object]:
    def stepped(playing: ActionPlayback, now_ns: int) -> object:
        # as if everything had been seen a moment ago
        return step(playing, min(now_ns, 0))

    return stepped


def test_a_prefix_of_another_policy(monkeypatch):
    leftover = ActionQueue.leftover
    monkeypatch.setattr(
        ActionQueue, 'leftover', lambda queue, limit: replace(leftover(queue, limit), policy='x')
    )
    found(EDGE, 'prefix')


def test_a_second_request_in_flight(monkeypatch):
    sent = SessionMachine.sent

    def forgetful(machine, pending):
        sent(machine, pending)
        machine.in_flight = None

    monkeypatch.setattr(SessionMachine, 'sent', forgetful)
    found(EDGE, 'one in flight')


# who may get episodes


def forget_verdicts(monkeypatch: pytest.MonkeyPatch, path: SlotUse) -> None:
    forgotten = {ObstacleKind.BARRED, ObstacleKind.NO_SHARE, ObstacleKind.NOT_OFFERED}
    row = eligibility.REFUSING_OBSTACLES[path] - forgotten
    monkeypatch.setitem(eligibility.REFUSING_OBSTACLES, path, row)


@pytest.mark.parametrize('path', [SlotUse.TAKE_OVER, SlotUse.MOVE_IN])
def test_a_verdict_that_one_path_does_not_ask_for(monkeypatch, path):
    """R1: what was rolled back gets episodes."""
    forget_verdicts(monkeypatch, path)
    found(ROUTER, 'barred')


def play_script(script: Script, steps: int, **choices: object) -> tuple[Finding | None, set[str]]:
    """Return what is found, and the slots in which episodes were placed."""
    model = RouterModel(1, **choices)
    _, finding = play(lambda _: model, ROUTER.rules, 1, script, steps)
    return finding, set(model.checker.placed.values())


COMES_BACK = (
    ScriptLine(6, 'canary word', ('rollback',)),
    ScriptLine(7, 'plan', ('none',)),
    # the split is the operator's while another policy is there
    ScriptLine(8, 'load', ('b', 2)),
    ScriptLine(12, 'split', (50,)),
    ScriptLine(15, 'load', ('b', 1)),
)


def test_a_verdict_that_the_split_does_not_ask_for(monkeypatch):
    """R1; no random run gets there soon."""
    choices = {'canary.plan': ('50:2:0', '100'), 'split_percent': 50, 'failover_slots': 'none'}
    finding, _ = play_script(COMES_BACK, 300, **choices)
    assert finding is None
    forget_verdicts(monkeypatch, SlotUse.PLACE)
    finding, _ = play_script(COMES_BACK, 300, **choices)
    assert finding and finding.rule == 'barred'


def test_a_verdict_that_is_gone_after_a_restart(monkeypatch):
    """R2."""
    restore = DurableDecisions.restore

    def without_verdicts(intent, slots):
        texts = restore(intent, slots)
        intent.verdicts.clear()
        return texts

    monkeypatch.setattr(DurableDecisions, 'restore', without_verdicts)
    found(ROUTER, 'barred')


NOT_KNOWN = (
    ScriptLine(6, 'slot halted', ('b', 'halted')),
    ScriptLine(7, 'restart', (True,)),
    ScriptLine(8, 'plan', ('short',)),
    ScriptLine(12, 'canary word', ('rollback',)),
    ScriptLine(18, 'slot word', ('lift', 'b')),
    ScriptLine(19, 'slot halted', ('a', 'halted')),
    ScriptLine(20, 'slot well', ('b', 'well')),
)


def test_a_verdict_on_a_slot_whose_policy_is_not_known(monkeypatch):
    choices = {'canary.plan': (), 'split_percent': 100, 'failover_slots': 'b'}
    lifted = play_script(NOT_KNOWN, 60, **choices)
    assert lifted == (None, {'a', 'b'}), 'it bars no policy either'
    unlifted = tuple(line for line in NOT_KNOWN if line.rule != 'slot word')
    assert play_script(unlifted, 60, **choices) == (None, {'a'})
    of_policy = property(lambda slot: slot.verdicts.get(slot.policy, NO_VERDICT))
    monkeypatch.setattr(Slot, 'verdict_record', of_policy)
    finding, _ = play_script(unlifted, 60, **choices)
    assert finding and finding.rule == 'barred'


def test_a_request_that_is_answered_twice(monkeypatch):
    reply = RouterModel.reply

    def twice(model, robot, raw):
        for _ in range(2):
            reply(model, robot, raw)

    monkeypatch.setattr(RouterModel, 'reply', twice)
    found(ROUTER, 'answered twice')

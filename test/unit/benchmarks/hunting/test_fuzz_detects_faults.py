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
from benchmarks.hunting.driver import FuzzTarget
from benchmarks.hunting.edge_person import RememberedDecision
from benchmarks.hunting.router_model import RouterModel
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.edge.control import authority
from lerobot_serve.edge.control.playback import ActionPlayback
from lerobot_serve.edge.core import EdgeCore
from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.tracker import RequestTracker
from lerobot_serve.edge.takeover.person_input import DeviceState, PersonInput
from lerobot_serve.router.data_path import dispatcher
from lerobot_serve.router.placement import eligibility
from lerobot_serve.router.placement.eligibility import ObstacleKind, SlotUse
from lerobot_serve.router.placement.placement_table import PlacementTable
from lerobot_serve.router.sessions import manager
from lerobot_serve.router.storage.decisions import DurableDecisions

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


def test_a_hand_back_that_keeps_the_plans_of_before(monkeypatch):
    monkeypatch.setattr(Requester, 'replan', lambda _: None)
    found(EDGE, 'handed back')


@pytest.mark.slow
def test_a_takeover_that_dies_with_the_process(monkeypatch):
    monkeypatch.setattr(RememberedDecision, 'exists', lambda _: False)
    found(EDGE, 'person')


@pytest.mark.slow
def test_a_pause_that_dies_with_the_process(monkeypatch):
    make = EdgeCore.make_operator_control
    monkeypatch.setattr(
        EdgeCore, 'make_operator_control', lambda core, *given: make(core, *given[:2], None)
    )
    found(EDGE, 'authority')


def test_a_deadman_that_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(PersonInput, '_deadman_state', lambda *_: DeviceState.READY)
    found(EDGE, 'person')


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
    track = RequestTracker.track

    def forgetful(tracker, **what):
        pending = track(tracker, **what)
        tracker.in_flight = None
        return pending

    monkeypatch.setattr(RequestTracker, 'track', forgetful)
    found(EDGE, 'one in flight')


def test_steps_without_a_limit(monkeypatch):
    monkeypatch.setattr(
        MotionLimits, 'nearest', lambda limits, wanted, *_, **__: np.array(wanted, np.float64)
    )
    found(EDGE, 'step')


# who may get episodes


@pytest.mark.parametrize('path', [SlotUse.PLACE, SlotUse.TAKE_OVER, SlotUse.MOVE_IN])
def test_a_verdict_that_one_path_does_not_ask_for(monkeypatch, path):
    """R1: what was rolled back gets episodes."""
    forgotten = {ObstacleKind.BARRED, ObstacleKind.NO_SHARE, ObstacleKind.NOT_OFFERED}
    row = eligibility.REFUSING_OBSTACLES[path] - forgotten
    monkeypatch.setitem(eligibility.REFUSING_OBSTACLES, path, row)
    found(ROUTER, 'barred', 154 if path is SlotUse.PLACE else 1)


def test_a_drain_that_is_gone_after_a_restart(monkeypatch):
    """R8."""
    monkeypatch.setattr(DurableDecisions, 'restore', lambda intent, slots: [])
    found(ROUTER, 'drained', 17)


def test_a_split_that_is_gone_after_a_restart(monkeypatch):
    """R8."""
    monkeypatch.setattr(DurableDecisions, 'parameters', lambda intent, held, given: (given, []))
    found(ROUTER, 'intent')


def test_a_verdict_that_is_gone_after_a_restart(monkeypatch):
    """R2."""
    restore = DurableDecisions.restore

    def without_verdicts(intent, slots):
        texts = restore(intent, slots)
        intent.verdicts.clear()
        return texts

    monkeypatch.setattr(DurableDecisions, 'restore', without_verdicts)
    found(ROUTER, 'barred')


def test_a_request_without_an_end(monkeypatch):
    for module in (dispatcher, manager):
        monkeypatch.setattr(module, 'report_dropped', lambda *_: None)
    found(ROUTER, 'lost')


def test_a_policy_that_changes_without_a_flag(monkeypatch):
    monkeypatch.setattr(dispatcher, 'with_flags', lambda raw, flags, cleared: raw)
    found(ROUTER, 'flag')


def test_a_request_that_is_answered_twice(monkeypatch):
    reply = RouterModel.reply

    def twice(model, robot, raw):
        for _ in range(2):
            reply(model, robot, raw)

    monkeypatch.setattr(RouterModel, 'reply', twice)
    found(ROUTER, 'answered twice')


def test_an_episode_that_loses_its_slot(monkeypatch):
    monkeypatch.setattr(PlacementTable, '_remember', lambda *_: None)
    found(ROUTER, 'sticky', 32)

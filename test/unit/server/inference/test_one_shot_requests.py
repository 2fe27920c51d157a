# SPDX-License-Identifier: Apache-2.0
"""Requests without a session: each is an episode of its own."""

from __future__ import annotations

import pytest
from support.server.server_core_rig import request, Rig
from support.server.session_rig import RULES

from lerobot_serve.contract.schema import Refusal, StateClass, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.inference import schedulers

GOODBYE = SessionRefused(Refusal.DRAINING, 'the server is going away')


def test_one_request_without_a_session_is_an_episode_of_its_own():
    rig, answers = Rig(state_class=StateClass.RECURRENT, stochastic=True), []
    assert rig.core.enqueue_one_shot('one#1', request(9, left_s=1.0), 5, answers.append) is None
    assert rig.statistics.requests == 1
    (chunk,) = rig.step()
    assert answers == [chunk]
    assert (chunk.status, chunk.client_id) == (Status.OK, 'robot_9')
    asked, reset = rig.policy.calls
    assert (asked.session_id, asked.task, reset) == ('one#1', RULES.default_task, 'one#1')
    assert chunk.seed > 0
    assert len(rig.core.sessions) == 0


def test_a_request_without_a_session_may_be_withdrawn():
    rig, answers = Rig(), []
    rig.core.enqueue_one_shot('one#1', request(9), 0, answers.append)
    assert rig.request_queue.withdraw_one_shot('one#1')
    assert rig.request_queue.withdraw_one_shot('one#1') is None
    assert (len(rig.request_queue), answers) == (0, [])


def test_a_bad_request_without_a_session_is_answered_too():
    rig, answers = Rig(), []
    rig.core.enqueue_one_shot('one#1', request(9)[:-3], 0, answers.append)
    rig.step()
    assert [chunk.status for chunk in answers] == [Status.BAD_OBSERVATION]


def test_a_policy_that_one_robot_uses_answers_nobody_else():
    rig, answers = Rig(state_class=StateClass.EXCLUSIVE), []
    assert rig.core.enqueue_one_shot('one#1', request(9), 0, answers.append) is None
    rig.step()
    rig.open(1)
    refused = rig.core.enqueue_one_shot('one#2', request(9), 0, answers.append)
    assert refused.status == Status.NO_SESSION
    assert 'exclusive policy' in refused.status_text
    assert (len(answers), len(rig.request_queue)) == (1, 0)
    assert rig.drops == {'exclusive_in_use': 1}


def test_a_server_that_goes_away_takes_no_request_without_a_session():
    rig = Rig()
    rig.core.stop_accepting(GOODBYE)
    refused = rig.core.enqueue_one_shot('one#1', request(9), 0, pytest.fail)
    assert (refused.status, refused.status_text) == (Status.DRAINING, str(GOODBYE))
    assert (len(rig.request_queue), rig.drops) == (0, {'draining': 1})


def test_the_one_that_finds_no_place_is_told_the_bound_and_counted():
    rig, answers = Rig(), []
    for number in range(RULES.max_waiting_goals):
        assert rig.core.enqueue_one_shot(f'one#{number}', request(9), 0, answers.append) is None
    refused = rig.core.enqueue_one_shot('one#9', request(9), 0, answers.append)
    assert refused.status == Status.TOO_LATE
    assert f'{RULES.max_waiting_goals} predict_chunk calls are waiting' in refused.status_text
    assert 'max_waiting_goals' in refused.status_text
    assert rig.drops == {'one_shots_full': 1}
    assert rig.statistics.requests == RULES.max_waiting_goals


def test_earliest_dry_serves_a_robot_before_a_call_that_nobody_runs_dry_for():
    rig = Rig()
    rig.request_queue.set_scheduler(
        schedulers.make_scheduler('lowest_queue_first', size=1, window_ns=0, batch_limit=0), int
    )
    rig.open(1)
    rig.core.enqueue_one_shot('one#1', request(9), 0, lambda _: None)
    rig.core.enqueue(request(1, left_s=0.5), 5)
    order = [rig.request_queue.take_batch()[0].session.session_id for _ in range(2)]
    assert order == ['robot_1#00000007', 'one#1']

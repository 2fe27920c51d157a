# SPDX-License-Identifier: Apache-2.0
"""Requests without a session: however many there are, they have the place of one robot."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.server.request_queue_rig import name_of, queued, take_all

from lerobot_serve.server.inference import schedulers
from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue

PLENTY = 1000


def one_shot(number: int, **changes: int) -> QueuedRequest:
    made = queued(f'one#{number}', **changes)
    return replace(made, on_reply=print)


def key(number: int) -> str:
    return one_shot(number).session.session_id


@given(st.integers(1, 600), st.integers(1, 8))
def test_a_robot_waits_for_one_of_them_and_for_each_other_robot_once(goals, robots):
    request_queue = RequestQueue()
    for number in range(goals):
        assert request_queue.put_one_shot(one_shot(number), PLENTY)
    for number in range(robots):
        request_queue.put(queued(f'robot_{number}'))
    order = [name for name, _ in take_all(request_queue)]
    assert order[: robots + 1] == ['one#0', *(f'robot_{number}' for number in range(robots))]
    assert order[robots + 1 :] == [f'one#{number}' for number in range(1, goals)]


def test_robots_that_keep_asking_and_goals_take_turns():
    request_queue, taken = RequestQueue(), []
    for number in range(50):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    for _ in range(10):
        request_queue.put(queued('robot'))
        taken += [name_of(request_queue.take_batch()[0]), name_of(request_queue.take_batch()[0])]
    assert taken[1::2] == ['robot'] * 10
    assert taken[::2] == [f'one#{number}' for number in range(10)]


def test_under_micro_batch_one_of_them_is_in_a_batch():
    request_queue = RequestQueue()
    request_queue.set_scheduler(
        schedulers.make_scheduler('dynamic_batching', size=8, window_ns=0, batch_limit=0),
        lambda: 2,
    )
    for number in range(20):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    for name in ('a', 'b'):
        request_queue.put(queued(name))
    assert sorted(map(name_of, request_queue.take_batch())) == ['a', 'b', 'one#0']


@pytest.mark.parametrize('limit', [1, 2, 16])
def test_the_line_of_goals_is_bounded(limit):
    request_queue = RequestQueue()
    taken = [request_queue.put_one_shot(one_shot(number), limit) for number in range(limit + 3)]
    assert taken == [True] * limit + [False] * 3
    assert len(request_queue) == limit
    request_queue.take_batch()
    assert request_queue.put_one_shot(one_shot(99), limit)
    # a full line of goals takes no place of a robot
    assert request_queue.put(queued('robot')) is None
    assert len(request_queue) == limit + 1


@pytest.mark.parametrize('gone', [0, 1, 2])
def test_one_that_is_withdrawn_leaves_the_others_in_order(gone):
    request_queue = RequestQueue()
    for number in range(3):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    assert name_of(request_queue.withdraw_one_shot(key(gone))) == f'one#{gone}'
    assert request_queue.withdraw_one_shot(key(gone)) is None
    assert [name for name, _ in take_all(request_queue)] == [
        f'one#{n}' for n in range(3) if n != gone
    ]


def test_all_of_them_are_given_back_at_the_end():
    request_queue = RequestQueue()
    for number in range(3):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    request_queue.put(queued('robot'))
    assert len(request_queue.drop_all()) == 4
    assert len(request_queue) == 0
    assert request_queue.put_one_shot(one_shot(9), 1)

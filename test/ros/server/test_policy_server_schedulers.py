# SPDX-License-Identifier: Apache-2.0
"""The order of service, changed while the server runs."""

from __future__ import annotations

from collections import Counter
import queue

import numpy as np
import pytest

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.schema import Status

ROBOTS = 8
TURNS = 320


def state_of(number: int, seq: int) -> np.ndarray:
    """Return a state that only this robot shows, and only in this request."""
    return np.full((1, 6), 1000 * number + seq, np.float32)


def ask_all(rig, robots) -> None:
    """Let every robot ask, in this order; the first one's request is at the policy then."""
    for number, robot in enumerate(robots):
        robot.request(state=state_of(number, 1))
        rig.wait_for_requests(number + 1)
        if number == 0:
            rig.wait_for_events('predict')


def batches(rig) -> list[list[str]]:
    """Return whose requests the policy was given together."""
    events = rig.steering.events('predict')
    return [[name.split('#')[0] for name in event.split()[1:]] for event in events]


@pytest.fixture
def gated(rig):
    """A server whose policy waits for leave before each prediction, and its robots."""
    rig.steering.turns.close_gate()
    rig.start(policy_kind='steered')
    return rig.clients(ROBOTS)


def expect_own_answers(robots) -> None:
    for number, robot in enumerate(robots):
        chunk = robot.take()
        assert chunk.status == Status.OK
        assert chunk.client_id == robot.ask.client_id
        assert np.array_equal(chunk.robot[0], state_of(number, 1)[0])


def test_round_robin_serves_one_after_the_other(rig, gated):
    ask_all(rig, gated)
    rig.steering.turns.open_gate()
    expect_own_answers(gated)
    assert batches(rig) == [[f'robot_{i}'] for i in range(ROBOTS)]


def test_micro_batch_may_come_while_requests_wait_and_mixes_no_answers(rig, gated):
    ask_all(rig, gated)
    assert rig.set(scheduler='dynamic_batching', max_batch_delay_ms=1000.0) == ''
    rig.steering.turns.open_gate()
    expect_own_answers(gated)
    assert batches(rig) == [['robot_0'], [f'robot_{i}' for i in range(1, ROBOTS)]]


def test_a_batch_is_no_larger_than_allowed(rig, gated):
    assert rig.set(scheduler='dynamic_batching', max_batch_size=3) == ''
    ask_all(rig, gated)
    rig.steering.turns.open_gate()
    expect_own_answers(gated)
    assert [len(batch) for batch in batches(rig)] == [1, 3, 3, 1]


def test_a_batch_is_no_larger_than_the_policy_takes(rig):
    rig.steering.turns.close_gate()
    path = rig.steering.path(batch_limit=4)
    rig.start(policy_kind='steered', policy_path=path, scheduler='dynamic_batching')
    robots = rig.clients(ROBOTS)
    ask_all(rig, robots)
    rig.steering.turns.open_gate()
    expect_own_answers(robots)
    assert [len(batch) for batch in batches(rig)] == [1, 4, 3]


def test_earliest_dry_serves_first_who_runs_out_first(rig, gated):
    assert rig.set(scheduler='lowest_queue_first') == ''
    gated[0].request(queue_remaining_s=50.0)
    rig.wait_for_events('predict')
    for number, robot in enumerate(gated[1:], 2):
        # far enough apart that the moment of arrival decides nothing
        robot.request(queue_remaining_s=55.0 - 5.0 * number)
        rig.wait_for_requests(number)
    rig.steering.turns.open_gate()
    for robot in gated:
        assert robot.take().status == Status.OK
    order = [0, *range(ROBOTS - 1, 0, -1)]
    assert batches(rig) == [[f'robot_{i}'] for i in order]


def test_a_scheduler_that_there_is_not_changes_nothing(rig):
    rig.start(policy_kind='steered')
    reason = rig.set(scheduler='lifo')
    assert 'scheduler must be one of round_robin, lowest_queue_first, dynamic_batching' in reason
    assert rig.client().round_trip().status == Status.OK


# the policy is let go one prediction at a time, and only when every robot waits
@pytest.mark.slow
@pytest.mark.parametrize('scheduler', ['round_robin', 'lowest_queue_first'])
def test_everybody_gets_as_much_as_everybody_else(rig, gated, scheduler):
    assert rig.set(scheduler=scheduler) == ''
    ask_all(rig, gated)
    served = Counter({robot.ask.client_id: 0 for robot in gated})
    waiting = list(enumerate(gated))
    for turn in range(1, TURNS + 1):
        rig.steering.turns.let()
        number, robot, chunk = rig.wait(lambda: arrived(waiting), 'a chunk')
        assert np.array_equal(chunk.robot[0], state_of(number, chunk.header.seq)[0])
        served[robot.ask.client_id] += 1
        assert max(served.values()) - min(served.values()) <= 1
        robot.request(state=state_of(number, chunk.header.seq + 1))
        rig.wait_for_requests(ROBOTS + turn)
    assert set(served.values()) == {TURNS // ROBOTS}


def arrived(waiting):
    """Return the robot that has a chunk, and the chunk; nothing when none has."""
    for number, robot in waiting:
        try:
            return number, robot, wire_chunk.decode(robot.chunks.get_nowait())
        except queue.Empty:
            continue
    return None


@pytest.mark.parametrize('scheduler', ['round_robin', 'lowest_queue_first', 'dynamic_batching'])
def test_robots_that_ask_as_fast_as_they_can_get_their_own_answers(rig, scheduler):
    rig.start(policy_kind='steered', scheduler=scheduler)
    robots = rig.clients(ROBOTS)
    for number, robot in enumerate(robots):
        robot.request(state=state_of(number, 1))
    waiting, counts = list(enumerate(robots)), Counter()
    while counts.total() < TURNS:
        number, robot, chunk = rig.wait(lambda: arrived(waiting), 'a chunk')
        assert chunk.status == Status.OK
        assert np.array_equal(chunk.robot[0], state_of(number, chunk.header.seq)[0])
        counts[number] += 1
        assert chunk.header.seq == counts[number]
        if counts.total() + ROBOTS <= TURNS:
            robot.request(state=state_of(number, chunk.header.seq + 1))
    status = rig.status()
    assert (status.requests, status.chunks, status.superseded) == (TURNS, TURNS, 0)
    assert not status.dropped

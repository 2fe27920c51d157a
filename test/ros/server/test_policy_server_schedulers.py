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


def test_micro_batch_may_come_while_requests_wait_and_mixes_no_answers(rig, gated):
    ask_all(rig, gated)
    assert rig.set(scheduler='dynamic_batching', max_batch_delay_ms=1000.0) == ''
    rig.steering.turns.open_gate()
    expect_own_answers(gated)
    assert batches(rig) == [['robot_0'], [f'robot_{i}' for i in range(1, ROBOTS)]]


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

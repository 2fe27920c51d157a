# SPDX-License-Identifier: Apache-2.0
"""Goals of PredictChunk sent on, without a router, with a limit that a test can wait for."""

from __future__ import annotations

import signal
from types import SimpleNamespace

from action_msgs.srv import CancelGoal
import numpy as np
import pytest
from support.nodes.predict_chunk_rig import (
    ABORTED,
    answered,
    asking,
    CANCELED,
    first_row,
    refused,
    STATE,
    SUCCEEDED,
)
from support.nodes.server_rig import ServerRig
from support.processes.stopped_process import halt

from lerobot_serve.contract.data_path.header import Envelope
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.router.ros.predict_chunk_proxy import PredictChunkProxy, UNANSWERED

# what a test waits for when nobody answers
SHORT_S = 0.5


class Forward:
    """A node that forwards goals to one server."""

    def __init__(self, rig: ServerRig, runtime: NodeRuntime, limit_s: float) -> None:
        self.drops: list[str] = []
        self.flags, self.why_refused = Flag.NONE, ''
        self.caller = ServerRig(rig.node, rig.fleet, None, '/test')
        self._server = rig.name
        self._forward = PredictChunkProxy(
            rig.node,
            runtime,
            self,
            self.drops.append,
            limit_s=limit_s,
        )

    def taken(self) -> int:
        """Return how many goals the server has accepted, as far as the router knows."""
        under_way = list(self._forward._dispatcher._in_flight.values())
        return sum(errand.handle is not None for errand in under_way)

    # the GoalRouter

    def refusal(self, slot: str, policy: str) -> str:
        return self.why_refused

    def charge(self, client_id: str, inference_ms: float) -> None:
        """Nobody has a quota."""

    def choose(self, start: Envelope, goal_bytes: int) -> SimpleNamespace:
        assert goal_bytes > 0
        return SimpleNamespace(server=self._server, slot='a', flags=self.flags)


@pytest.fixture
def forward(request, rig, runtime):
    made = Forward(rig, runtime, getattr(request, 'param', SHORT_S))
    yield made
    made.caller.end()


patient = pytest.mark.parametrize('forward', [30.0], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize('forward', [3.0], indirect=True)
def test_a_replica_killed_in_mid_goal_ends_the_goal_with_words(forward, rig):
    rig.steering.turns.close_gate()
    process = rig.start(policy_kind='steered')
    goals = [forward.caller.predict(asking('episode')) for _ in range(2)]
    rig.wait(lambda: forward.taken() == len(goals), 'the goals are taken')
    rig.wait_for_events('predict')
    process.kill()
    for goal in goals:
        status, chunk = goal.result()
        assert (status, chunk.status) == (ABORTED, Status.TOO_LATE)
        assert '/policy_server did not reply within 3 s' in chunk.status_text
        assert 'send the goal again' in chunk.status_text
        assert (chunk.slot, chunk.episode_id, chunk.header.msg_type) == ('a', 'episode', 2)
    assert forward.drops == [UNANSWERED] * 2
    # its successor is asked
    rig.steering.turns.open_gate()
    rig.start(policy_kind='steered')
    rig.wait(lambda: forward.caller.predict(asking()).result()[0] == SUCCEEDED, 'an answer')


def test_a_replica_that_hangs_ends_the_goal_and_is_asked_again_when_it_goes_on(forward, rig):
    process = rig.start(policy_kind='steered')
    answered(forward.caller)
    halt(process)
    chunk = refused(forward.caller)
    assert chunk.status == Status.TOO_LATE
    assert '/policy_server did not accept the goal within 0.5 s' in chunk.status_text
    goal = forward.caller.predict(asking())
    # nobody there agrees to a cancel, and nobody answers
    assert not goal.cancel()
    assert goal.result()[0] == ABORTED
    process.send_signal(signal.SIGCONT)
    rig.wait(lambda: forward.caller.predict(asking()).result()[0] == SUCCEEDED, 'an answer')


def test_a_goal_for_a_server_that_is_not_found_waits_for_it(forward, rig):
    chunk = refused(forward.caller)
    assert '/policy_server was not found within 0.5 s' in chunk.status_text
    goal = forward.caller.predict(asking())
    assert goal.cancel()
    assert goal.result()[0] == CANCELED
    assert forward.drops == [UNANSWERED]


@patient
def test_a_goal_that_somebody_else_cancels_is_no_answer(forward, rig):
    rig.steering.turns.close_gate()
    rig.start(policy_kind='steered')
    working = forward.caller.predict(asking())
    rig.wait_for_events('predict')
    *_, waiting = [forward.caller.predict(asking()) for _ in range(2)]
    rig.wait_for_requests(3)
    # all goals, of which rclpy skips each one behind one that it may not cancel
    rig.ask(CancelGoal, 'predict_chunk/_action/cancel_goal', CancelGoal.Request())
    status, chunk = waiting.result()
    assert (status, chunk.status) == (ABORTED, Status.NO_SESSION)
    assert 'ended the goal without a chunk' in chunk.status_text
    rig.steering.turns.open_gate()
    assert working.result()[0] == SUCCEEDED


@patient
def test_flags_are_added_to_what_the_server_says(forward, rig):
    rig.start(policy_kind='steered')
    forward.flags = Flag.POLICY_CHANGED
    chunk = answered(forward.caller, 'episode')
    assert (chunk.header.flags, chunk.slot) == (Flag.POLICY_CHANGED, 'prod')


@patient
def test_many_goals_at_once_each_get_their_own_answer(forward, rig):
    rig.start(policy_kind='steered')
    goals = [forward.caller.predict(asking(state=STATE * number)) for number in range(40)]
    for number, goal in enumerate(goals):
        status, chunk = goal.result()
        assert status == SUCCEEDED
        assert np.array_equal(first_row(chunk), STATE * np.float32(number))


@patient
def test_an_answer_whose_policy_may_drive_no_more_reaches_no_robot(forward, rig):
    rig.start(policy_kind='steered')
    answered(forward.caller, 'episode')
    forward.why_refused = 'slot a: rolled back'
    chunk = refused(forward.caller, 'episode')
    assert (chunk.status, chunk.slot) == (Status.NO_SLOT, 'a')
    assert chunk.status_text.startswith('slot a: rolled back; send the goal again')
    assert forward.drops == [UNANSWERED]

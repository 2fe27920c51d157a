# SPDX-License-Identifier: Apache-2.0
"""Learners as an operator's client finds them: played ones, also silent ones."""

from __future__ import annotations

from collections.abc import Iterator
import math

from builtin_interfaces.msg import Time
import pytest
from rclpy.serialization import deserialize_message
from support.learner import shown_learner
from support.tools.operator_states import changed
from support.waiting import wait_until

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import encode
from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.ros import qos
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.learners import learners_json, LearnerView, SILENT_S
from lerobot_serve_interfaces.msg import LearnerState

LIMIT_S = 20.0
NODE = '/line_1/learner'
# numbers that are the same in 32 bits
SHOWN = changed(shown_learner.TRAINS, node=NODE, progress=0.5, loss=0.25)
TRAINS = deserialize_message(encode(SHOWN.state), LearnerState)


class PlayedLearner:
    """Publishes states as a learner does; `stamp` is that of a clock that may be off."""

    def __init__(self, node, name: str = NODE) -> None:
        self._node = node
        self._publisher = node.create_publisher(LearnerState, f'{name}/state', qos.STATE)

    def publish(self, state: LearnerState = TRAINS, stamp: Time | None = None) -> None:
        state.stamp = stamp or self._node.get_clock().now().to_msg()
        self._publisher.publish(state)


@pytest.fixture
def client() -> Iterator[FleetClient]:
    with FleetClient(LIMIT_S) as opened:
        yield opened


def views(client: FleetClient) -> dict[str, LearnerView]:
    return {each.node: each for each in client.last_learners()}


def test_the_phases_are_those_of_the_message():
    states = records.LearnerState.State
    assert {s.name: s.value for s in states} == {phase.name: phase.value for phase in Phase}


def test_without_a_learner_none_is_found(client, node):
    assert client.find_learners() == []
    assert client.last_learners() == []


def test_learners_are_found_with_all_that_they_show(client, node):
    PlayedLearner(node).publish()
    PlayedLearner(node, '/a/learner').publish(LearnerState(state=9, progress=math.nan))
    other, learner = client.find_learners()
    assert changed(learner, stamp=SHOWN.state.stamp) == SHOWN
    # of a newer version
    assert (other.node, other.phase, other.progress) == ('/a/learner', 'unknown (9)', None)


@pytest.mark.slow
def test_a_learner_that_starts_later_is_found_and_one_that_stops_is_silent(client, node):
    assert client.last_learners() == []
    learner = PlayedLearner(node)
    learner.publish()
    wait_until(lambda: NODE in views(client), 'it is found', LIMIT_S)
    learner.publish()
    assert not views(client)[NODE].is_silent
    wait_until(lambda: views(client)[NODE].is_silent, 'it is silent', LIMIT_S)
    silent_s = views(client)[NODE].silent_s
    assert SILENT_S < silent_s < LIMIT_S
    learner.publish()
    wait_until(lambda: not views(client)[NODE].is_silent, 'it is heard of again', LIMIT_S)


def test_a_latched_state_of_a_learner_that_hangs_is_old(client, node):
    PlayedLearner(node).publish(stamp=Time(sec=1))
    (found,) = client.find_learners()
    assert found.phase == 'TRAINING' and found.silent_s > 1e9
    assert learners_json([found])[0]['progress'] is None


def test_a_clock_that_is_off_is_no_silence_once_a_second_state_arrives(client, node):
    learner = PlayedLearner(node)
    learner.publish(stamp=Time(sec=1))
    wait_until(lambda: client.last_learners() or learner.publish(stamp=Time(sec=1)), 'it', LIMIT_S)
    learner.publish(stamp=Time(sec=1))
    wait_until(lambda: not views(client)[NODE].is_silent, 'it is heard of', LIMIT_S)


def test_a_learner_whose_state_does_not_arrive_is_silent(client, node):
    PlayedLearner(node)
    (found,) = client.find_learners()
    assert found.phase == 'UNKNOWN' and found.silent_s >= SILENT_S


def test_a_learner_is_not_shown_while_its_first_state_may_still_arrive(client, node):
    PlayedLearner(node)
    (found,) = wait_until(client.last_learners, 'it is shown', LIMIT_S)
    assert found.silent_s is not None and found.silent_s >= SILENT_S

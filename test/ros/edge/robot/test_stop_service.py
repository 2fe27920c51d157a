# SPDX-License-Identifier: Apache-2.0
"""The call of a stop service: what the log says of it."""

from __future__ import annotations

import pytest
from rclpy.task import Future
from std_srvs.srv import Trigger

from lerobot_serve.edge.ros.stop_service import REPLY_TIMEOUT_S, StopService


class Robot:
    """A node, its logger, its client and its clock."""

    srv_name = '/arm/stop'

    def __init__(self) -> None:
        self.said: list[str] = []
        self.answers: list[Future] = []
        self.now_s = 10.0

    def create_client(self, _: type, name: str) -> Robot:
        return self

    def get_logger(self) -> Robot:
        return self

    def error(self, text: str) -> None:
        self.said.append(text)

    def call_async(self, _: Trigger.Request) -> Future:
        self.answers.append(Future())
        return self.answers[-1]

    def remove_pending_request(self, answer: Future) -> None:
        self.answers.remove(answer)


@pytest.fixture
def robot() -> Robot:
    return Robot()


def called(robot: Robot) -> StopService:
    stop = StopService(robot, '/arm/stop', lambda: robot.now_s)
    stop.call('no session for 1 s')
    # the tick thread writes no log
    assert robot.said == []
    stop.look()
    assert robot.said[0].startswith('called /arm/stop: no session for 1 s; no commands are sent')
    return stop


def test_a_stop_that_is_done_is_said_once(robot):
    stop = called(robot)
    robot.answers[0].set_result(Trigger.Response(success=True))
    robot.now_s += 2 * REPLY_TIMEOUT_S
    stop.look()
    stop.look()
    assert len(robot.said) == 1


def test_a_stop_that_is_refused_is_said(robot):
    stop = called(robot)
    robot.answers[0].set_result(Trigger.Response(success=False, message='no power'))
    stop.look()
    stop.look()
    assert robot.said[1:] == [
        "/arm/stop did not stop the robot: 'no power'; stop the robot by hand"
    ]


def test_a_stop_that_is_not_answered_is_said(robot):
    stop = called(robot)
    robot.now_s += 0.9 * REPLY_TIMEOUT_S
    stop.look()
    assert len(robot.said) == 1
    robot.now_s += 0.2 * REPLY_TIMEOUT_S
    stop.look()
    stop.look()
    assert robot.said[1:] == ['no response of /arm/stop within 2 s; stop the robot by hand']
    assert robot.answers == []


def test_where_no_service_is_named_nothing_is_called(robot):
    stop = StopService(robot, '')
    stop.call('why')
    stop.look()
    assert (robot.answers, robot.said) == ([], [])

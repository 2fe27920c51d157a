# SPDX-License-Identifier: Apache-2.0
"""What one source sends ends no dashboard."""

from __future__ import annotations

from lerobot_serve.ros.contract.service_bytes import encode
from lerobot_serve.tools.dashboard.document.fleet_document import FleetDocument
from lerobot_serve.tools.dashboard.document.fleet_recorder import FleetRecorder, ROBOT
from lerobot_serve.tools.dashboard.ros.fleet_poll import FleetPoll
from lerobot_serve.tools.dashboard.ros.fleet_topics import WatchedSource
from lerobot_serve.tools.operate.fleet_state import RobotView
from lerobot_serve_interfaces.msg import EdgeState

LEFT, RIGHT = '/left/edge_controller', '/right/edge_controller'


class Topic:
    """Gives one message."""

    def __init__(self, raw: bytes) -> None:
        self._raw: bytes | None = raw

    def take(self) -> bytes | None:
        raw, self._raw = self._raw, None
        return raw


class Topics:
    def __init__(self, **states: bytes) -> None:
        self.sources = [
            WatchedSource(ROBOT, f'/{name}/edge_controller', Topic(raw), publishers=1)
            for name, raw in states.items()
        ]

    def discover(self) -> None: ...

    def count_publishers(self) -> None: ...


class Parameters:
    def age_limit_s(self, *_: object) -> None: ...


def polled(recorder: FleetRecorder, **states: bytes) -> FleetPoll:
    poll = FleetPoll(Topics(**states), recorder, Parameters(), lambda _: None, lambda: 0)
    poll.poll(1.0)
    return poll


def test_a_state_that_is_not_known_is_shown():
    document = FleetDocument({}, 0)
    state = encode(EdgeState(client_id='left', state=7))
    assert polled(FleetRecorder(document), left=state).malformed == 0
    assert document.newest[ROBOT][LEFT]['state'] == 'unknown (7)'


def test_whatever_one_source_causes_the_others_are_shown(monkeypatch):
    document = FleetDocument({}, 0)
    recorder = FleetRecorder(document)
    deposit = recorder.on_robot

    def on_robot(robot: RobotView, *given: object) -> None:
        if robot.node == LEFT:
            raise KeyError('a value of a newer version')
        deposit(robot, *given)

    monkeypatch.setattr(recorder, 'on_robot', on_robot)
    state = encode(EdgeState(client_id='x', state=EdgeState.STREAMING))
    assert polled(recorder, left=state, right=state).malformed == 1
    assert list(document.newest[ROBOT]) == [RIGHT]


def test_texts_are_shown_as_they_are_and_a_state_over_its_bounds_is_counted():
    hostile, huge = '<script>alert(1)</script>\nevent: patch\n\n', EdgeState(client_id='right')
    huge._reason = 'x' * 200_000
    document = FleetDocument({}, 0)
    state = encode(EdgeState(client_id=hostile, reason=hostile, state=EdgeState.STREAMING))
    assert polled(FleetRecorder(document), left=state, right=encode(huge)).malformed == 1
    assert list(document.newest[ROBOT]) == [LEFT]
    row = document.newest[ROBOT][LEFT]
    assert (row['client_id'], row['reason']) == (hostile, hostile)

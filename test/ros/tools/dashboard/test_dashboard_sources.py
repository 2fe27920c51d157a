# SPDX-License-Identifier: Apache-2.0
"""What the dashboard reads: a silent source, or one that sends nonsense, holds up no other."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import threading
import time
from typing import Any

import pytest

from lerobot_serve.ros.contract.service_bytes import encode
from lerobot_serve.tools.dashboard.document.fleet_document import FleetDocument
from lerobot_serve.tools.dashboard.document.fleet_recorder import FleetRecorder, ROBOT
from lerobot_serve.tools.dashboard.robot_messages import RobotMessages
from lerobot_serve.tools.dashboard.ros import fleet_poll, zenoh_feed
from lerobot_serve.tools.dashboard.ros.fleet_poll import FleetPoll, ParameterReader
from lerobot_serve.tools.dashboard.ros.fleet_topics import (
    FleetTopics,
    GRAPH_LIMIT_S,
    GRAPH_PERIOD_S,
    GRAPH_SHARE,
    WatchedSource,
)
from lerobot_serve.tools.dashboard.ros.zenoh_feed import ZenohFeed
from lerobot_serve.tools.operate.fleet_state import RobotView
from lerobot_serve.tools.operate.outcome import NotReached
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import EdgeState

ROUTER, READ_S, HOUR_S = '/policy_router', 2.0, 3600.0


class Fleet:
    """Robots that do not reply, and a router; each read of a robot takes READ_S."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.reads: list[str] = []

    def get_parameters(self, node: str, names: Sequence[str]) -> dict[str, Any]:
        self.reads.append(node)
        if node == ROUTER:
            return dict.fromkeys(names)
        self.now_s += READ_S
        raise NotReached('not there')


@pytest.mark.parametrize('count', [20, 100])
def test_a_plan_is_read_within_one_read_however_many_robots_hang(count):
    fleet = Fleet()
    reader = ParameterReader(lambda: contextlib.nullcontext(fleet))
    robots = [f'/robot_{number}' for number in range(count)]
    phase, longest_s, asked_s = 0, 0.0, None
    while fleet.now_s < HOUR_S:
        # the poll thread, once for each read
        for robot in robots:
            assert reader.age_limit_s(robot, fleet.now_s) is None
        if asked_s is None and fleet.now_s >= 600.0 * (phase + 1):
            phase, asked_s = phase + 1, fleet.now_s
        before = fleet.reads.count(ROUTER)
        reader.settings(ROUTER, phase, fleet.now_s)
        assert reader._asked.qsize() <= count + 1
        read_next(reader, fleet)
        if asked_s is not None and fleet.reads.count(ROUTER) > before:
            longest_s, asked_s = max(longest_s, fleet.now_s - asked_s), None
    assert phase >= 5
    assert longest_s <= READ_S
    # in turn
    assert {fleet.reads.count(robot) for robot in robots} <= {
        fleet.reads.count(robots[0]) + more for more in (-1, 0, 1)
    }


def read_next(reader: ParameterReader, fleet: Fleet) -> None:
    """Let the thread of the reader read one node."""
    stop, read = threading.Event(), reader._read

    def read_one(*given: Any, **options: Any) -> None:
        read(*given, **options)
        stop.set()

    reader._read = read_one
    try:
        reader.run(stop)
    finally:
        reader._read = read


def test_a_router_that_changes_while_it_is_read_is_read_again():
    fleet = Fleet()
    reader = ParameterReader(lambda: contextlib.nullcontext(fleet))
    reader.settings(ROUTER, 'a', 0.0)
    read = fleet.get_parameters

    def changes_meanwhile(node: str, names: Sequence[str]) -> dict[str, Any]:
        reader.settings(ROUTER, 'b', 0.1)
        return read(node, names)

    fleet.get_parameters = changes_meanwhile
    read_next(reader, fleet)
    fleet.get_parameters = read
    reader.settings(ROUTER, 'b', 0.2)
    read_next(reader, fleet)
    assert fleet.reads == [ROUTER, ROUTER]
    reader.settings(ROUTER, 'b', fleet_poll.REFRESH_S)
    assert reader._asked.qsize() == 0


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


class Graph:
    """A node in a domain without topics, whose graph takes CPU to read."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s, self.reads = cost_s, 0

    def get_topic_names_and_types(self) -> list[tuple[str, list[str]]]:
        self.reads += 1
        end_s = time.thread_time() + self.cost_s
        while time.thread_time() < end_s:
            pass
        return []


@pytest.mark.parametrize(
    ('cost_s', 'pause_s'),
    [
        (0.0, GRAPH_PERIOD_S),
        # longer than that share of a core allows
        (2 * GRAPH_LIMIT_S * GRAPH_SHARE, GRAPH_LIMIT_S),
    ],
)
def test_the_graph_is_read_again_after_its_pause(cost_s, pause_s):
    now_s, graph = 100.0, Graph(cost_s)
    topics = FleetTopics(graph, clock=lambda: now_s)
    topics.discover()
    assert graph.reads == 1
    now_s += pause_s - 0.01
    topics.discover()
    assert graph.reads == 1
    now_s += 0.02
    topics.discover()
    assert graph.reads == 2


def test_waiting_for_a_core_makes_no_longer_pause(monkeypatch):
    now_s, graph = 100.0, Graph(0.0)
    topics = FleetTopics(graph, clock=lambda: now_s)
    monkeypatch.setattr(graph, 'get_topic_names_and_types', lambda: time.sleep(0.05) or [])
    topics.discover()
    monkeypatch.undo()
    now_s += GRAPH_PERIOD_S
    topics.discover()
    assert graph.reads == 1


class Recording:
    """Counts the links that are open."""

    opened = 0

    def __init__(self, _: ZenohSettings) -> None:
        Recording.opened += 1

    def begin(self, *_: object) -> None: ...

    def close(self) -> None:
        Recording.opened -= 1


@pytest.mark.parametrize(
    ('server', 'links'), [('/policy_router', 1), ('zenoh:/policy_router', 1), ('', 0)]
)
def test_a_robot_is_heard_whatever_name_it_has_for_its_server(monkeypatch, server, links):
    """The server of a robot whose `link` is zenoh has no prefix."""
    monkeypatch.setattr(zenoh_feed, 'ZenohRecording', Recording)
    monkeypatch.setattr(Recording, 'opened', 0)
    feed, messages = ZenohFeed(ZenohSettings()), RobotMessages()
    feed.poll(messages, 'robot_1', server, 0)
    assert Recording.opened == links
    feed.remove(messages)
    assert Recording.opened == 0

# SPDX-License-Identifier: Apache-2.0
"""Nodes whose parameters nobody answers for keep no other node waiting."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import threading
from typing import Any

import pytest

from lerobot_serve.tools.dashboard.ros import parameter_reader
from lerobot_serve.tools.dashboard.ros.parameter_reader import ParameterReader
from lerobot_serve.tools.operate.outcome import NotReached

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
    reader.settings(ROUTER, 'b', parameter_reader.REFRESH_S)
    assert reader._asked.qsize() == 0

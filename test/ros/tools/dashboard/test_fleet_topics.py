# SPDX-License-Identifier: Apache-2.0
"""How often the dashboard reads the graph of its domain, which costs more the larger it is."""

from __future__ import annotations

import time

import pytest

from lerobot_serve.tools.dashboard.ros.fleet_topics import (
    FleetTopics,
    GRAPH_LIMIT_S,
    GRAPH_PERIOD_S,
    GRAPH_SHARE,
)


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

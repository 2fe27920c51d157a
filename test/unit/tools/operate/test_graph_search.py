# SPDX-License-Identifier: Apache-2.0
"""When a search for routers and robots ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lerobot_serve.tools.operate.discovery import graph_search
from lerobot_serve.tools.operate.discovery.graph_search import GraphSearch, PACKAGE, STATE

KIND, LIMIT_S, LOOKS = 'RouterState', 30.0, 200


class Graph:
    """A node that discovers one more router with each look, then nothing more."""

    def __init__(self, *routers: str) -> None:
        self._routers, self.looks = routers, 0

    def get_topic_names_and_types(self) -> list[tuple[str, list[str]]]:
        self.looks += 1
        assert self.looks < LOOKS, 'it searches on'
        other = ('/robot/edge_controller/state', [f'{PACKAGE}/EdgeState'])
        return [other, *((name + STATE, [f'{PACKAGE}/{KIND}']) for name in self.found)]

    @property
    def found(self) -> tuple[str, ...]:
        return self._routers[: self.looks]

    def get_node_names_and_namespaces(self) -> tuple[str, ...]:
        return self.found

    def count_publishers(self, topic: str) -> int:
        return 1


@pytest.fixture(autouse=True)
def fast(monkeypatch) -> Iterator[None]:
    """Without a reason to end, a search looks on."""
    monkeypatch.setattr(graph_search, 'GRAPH_POLL_S', 0.0)
    for name in ('SETTLE_S', 'MISSING_SETTLE_S', 'WANTED_SETTLE_S'):
        monkeypatch.setattr(graph_search, name, LIMIT_S)
    monkeypatch.setattr(graph_search, 'KNOWN_SETTLE_S', 0.0)


def search(graph: Graph, *known: str, **options: object) -> tuple[list[str], list[str]]:
    """Return what is found, and in which order."""
    order: list[str] = []
    found = GraphSearch(graph, KIND, known).run(LIMIT_S, on_found=order.append, **options)
    return found, order


def test_a_search_ends_as_soon_as_all_known_nodes_are_found():
    assert search(Graph('/r2', '/r1'), '/r1', '/r2') == (['/r1', '/r2'], ['/r2', '/r1'])


@pytest.mark.parametrize('known', [(), ('/r1', '/gone')], ids=['none known', 'one is missing'])
def test_a_search_for_others_goes_on(known):
    with pytest.raises(AssertionError, match='searches on'):
        search(Graph('/r1'), *known)


@pytest.mark.parametrize(
    ('known', 'constant'),
    [
        ((), 'SETTLE_S'),
        (('/r1', '/gone'), 'MISSING_SETTLE_S'),
        (('/gone',), 'MISSING_SETTLE_S'),
    ],
)
def test_it_ends_when_the_graph_does_not_change(known, constant, monkeypatch):
    monkeypatch.setattr(graph_search, constant, 0.001)
    monkeypatch.setattr(graph_search, 'GRAPH_POLL_S', 0.002)
    assert search(Graph('/r1'), *known)[0] == ['/r1']


def test_a_wanted_node_ends_the_search_and_others_are_not_waited_for():
    graph = Graph('/r1', '/r2', '/r3')
    found, _ = search(graph, '/r3', is_wanted='/r2'.__eq__)
    assert found == ['/r1', '/r2'] and graph.looks == 2


@pytest.mark.parametrize(('known', 'constant'), [((), 'WANTED_SETTLE_S'), (('/r1',), 'SETTLE_S')])
def test_a_wrong_name_ends_when_the_graph_does_not_change(known, constant, monkeypatch):
    with pytest.raises(AssertionError, match='searches on'):
        search(Graph('/r1'), *known, is_wanted='/r9'.__eq__)
    monkeypatch.setattr(graph_search, constant, 0.001)
    monkeypatch.setattr(graph_search, 'GRAPH_POLL_S', 0.002)
    assert search(Graph('/r1'), *known, is_wanted='/r9'.__eq__)[0] == ['/r1']


def test_none_is_waited_for_unless_there_may_be_none(monkeypatch):
    monkeypatch.setattr(graph_search, 'SETTLE_S', 0.0)
    with pytest.raises(AssertionError, match='searches on'):
        search(Graph())
    assert search(Graph(), may_be_none=True) == ([], [])


def test_a_known_node_is_waited_for_while_nothing_is_discovered(monkeypatch):
    """A busy machine discovers its first node after seconds; a router must be there."""
    monkeypatch.setattr(graph_search, 'MISSING_SETTLE_S', 0.0)
    for options in ({}, {'lists_missing': True}):
        with pytest.raises(AssertionError, match='searches on'):
            search(Graph(), '/r1', **options)


def test_a_list_ends_without_the_known_nodes_once_others_are_discovered(monkeypatch):
    monkeypatch.setattr(graph_search, 'MISSING_SETTLE_S', 0.0)
    graph = Graph()
    monkeypatch.setattr(graph, 'get_node_names_and_namespaces', lambda: ('/own', '/other'))
    assert search(graph, '/r1', lists_missing=True) == ([], [])

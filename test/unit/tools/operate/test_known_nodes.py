# SPDX-License-Identifier: Apache-2.0
"""The routers and robots that verbs of a machine have found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lerobot_serve.tools.operate.discovery import known_nodes as module
from lerobot_serve.tools.operate.discovery.known_nodes import KEEP_S, known_nodes, KnownNodes

KIND = 'EdgeState'


@pytest.fixture
def now(monkeypatch):
    """A clock that stands; the test moves it."""
    clock = [1000.0]
    monkeypatch.setattr(module.time, 'time', lambda: clock[0])
    return clock


def test_nodes_are_remembered_with_the_time_at_which_each_was_found_last(tmp_path, now):
    known = KnownNodes(tmp_path / 'ros' / 'domain_0.json')
    known.add(KIND, ['/r1', '/r2'])
    known.replace('RouterState', ['/router'])
    now[0] += 10
    known.add(KIND, ['/r2'])
    again = KnownNodes(tmp_path / 'ros' / 'domain_0.json')
    assert again.seen(KIND) == {'/r1': 1000.0, '/r2': 1010.0}
    assert again.seen('RouterState') == {'/router': 1000.0}
    now[0] = 1000.0 + KEEP_S + 1
    assert again.seen(KIND) == {'/r2': 1010.0}
    known.replace(KIND, [])
    assert again.seen(KIND) == {} and again.seen('RouterState') == {}


def test_a_time_of_the_future_is_of_a_clock_that_was_ahead(tmp_path, now):
    known = KnownNodes(tmp_path / 'domain_0.json')
    now[0] += 3_456_000.0
    known.add(KIND, ['/r1'])
    now[0] = 1000.0
    assert known.seen(KIND) == {}


NO_NODES = (
    *('', '[1]', '{"EdgeState": 1}'),
    *('{"EdgeState": {"/r1": "x"}}', '{"EdgeState": {"/r": NaN}}'),
)


@pytest.mark.parametrize('content', NO_NODES)
def test_a_file_that_cannot_be_read_counts_as_empty_and_is_replaced(tmp_path, content):
    file = tmp_path / 'domain_0.json'
    file.write_text(content)
    known = KnownNodes(file)
    assert known.seen(KIND) == {}
    known.add(KIND, ['/r1'])
    assert list(json.loads(file.read_text())[KIND]) == ['/r1']


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / 'file').write_text('')
    known = KnownNodes(tmp_path / 'file' / 'domain_0.json')
    known.add(KIND, ['/r1'])
    assert known.seen(KIND) == {}


@pytest.mark.parametrize(('domain', 'name'), [('', '0'), ('42', '42'), ('../7', '7')])
def test_each_domain_has_its_file_below_ros_home(tmp_path, monkeypatch, domain, name):
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    monkeypatch.setenv('ROS_DOMAIN_ID', domain)
    known_nodes().add(KIND, ['/r1'])
    (file,) = tmp_path.rglob('*.json')
    assert file == Path(tmp_path, 'lerobot_serve', 'known_nodes', f'domain_{name}.json')

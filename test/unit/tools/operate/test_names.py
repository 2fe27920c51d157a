# SPDX-License-Identifier: Apache-2.0
"""Names that operators give, the nearest right one, and the nodes that a machine knows."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
from support.tools.operator_states import robot_of, router_of, slot_of

from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.discovery import known_nodes as module
from lerobot_serve.tools.operate.discovery.known_nodes import KEEP_S, known_nodes, KnownNodes
from lerobot_serve.tools.operate.names import (
    check_policy,
    nearest_name,
    operator_name,
    resolve_robot,
    resolve_router,
    resolve_slot,
)

ROUTERS = ['/lab/policy_router', '/policy_router']
ROBOTS = [robot_of(f'/robot_{n}/edge_controller', client_id=f'arm_{n}') for n in (7, 8)]
SLOT = slot_of('b', 'reach@ab12cd')


def test_the_only_router_needs_no_name():
    assert resolve_router('', ROUTERS[:1], {}) == '/lab/policy_router'


@pytest.mark.parametrize('given', ['policy_router', '/policy_router'])
def test_a_router_is_given_with_or_without_a_slash(given):
    assert resolve_router(given, ROUTERS, {}) == '/policy_router'


KNOWN = {'/policy_router': 12.0, '/lab/policy_router': 600.0}


def test_another_router_that_is_gone_holds_up_no_verb():
    assert resolve_router('', ROUTERS[:1], KNOWN) == ROUTERS[0]
    assert resolve_router('lab/policy_router', ROUTERS[:1], KNOWN) == ROUTERS[0]


@pytest.mark.parametrize('given', ['robot_7', '/robot_7', '/robot_7/edge_controller', 'arm_7'])
def test_a_robot_has_three_names(given):
    assert resolve_robot(given, ROBOTS) is ROBOTS[0]


def test_a_slot_that_the_router_has():
    assert resolve_slot('b', router_of('/r', slots=(SLOT,))) is SLOT


@pytest.mark.parametrize('given', ['reach', 'reach@ab12cd', 'reach@ab', 'ab12'])
def test_a_policy_is_named_by_name_fingerprint_or_hash(given):
    assert check_policy(given, SLOT) == 'reach@ab12cd'


def test_a_user_without_a_name_is_named_by_number(monkeypatch):
    assert operator_name().startswith(f'{getpass.getuser()}@')

    def unknown() -> str:
        raise KeyError('uid not found')

    monkeypatch.setattr(getpass, 'getuser', unknown)
    assert operator_name().startswith('uid')


def test_a_robot_of_a_name_that_two_have_is_given_by_its_namespace():
    twins = [robot_of(f'/cell_{n}/edge_controller', client_id='arm') for n in (1, 2)]
    assert resolve_robot('cell_2', twins) is twins[1]


@pytest.mark.parametrize(
    ('given', 'near'),
    [
        ('ROBOT_1', 'robot_1'),
        ('robt_1', 'robot_1'),
        # another number is another robot
        ('robot_9', ''),
        ('robot_33', ''),
        ('left_amr', 'left_arm'),
        ('zebra', ''),
    ],
)
def test_the_nearest_name_is_never_another_number(given, near):
    assert nearest_name(given, ['robot_1', 'robot_3', 'left_arm']) == near


SLOTS = {'b': (SLOT,), 'a, b': (slot_of('a'), SLOT), 'loads': (slot_of('b', text='it loads'),)}
ROBOTS_OF = {
    'none': [],
    '7, 8': ROBOTS,
    'forty': [robot_of(f'/robot_{n}/edge_controller') for n in range(40)],
    'twins': [robot_of(f'/cell_{n}/edge_controller', client_id='arm') for n in (1, 2)],
}
RESOLVE = {
    'router': lambda given, found: resolve_router(given, found, {}),
    # both answered before
    'router that was known': lambda given, found: resolve_router(given, found, KNOWN),
    'robot': lambda given, found: resolve_robot(given, ROBOTS_OF[found]),
    'slot': lambda given, slots: resolve_slot(given, router_of('/r', slots=SLOTS[slots])),
    'policy': lambda given, slots: check_policy(given, SLOTS[slots][0]),
}


@pytest.mark.golden
def test_a_wrong_name_is_answered_with_the_right_ones(golden):
    def told(error: UserError) -> str:
        return f'{type(error).__name__}: {error}'

    golden.holds_refusals('names', lambda kind, *given: RESOLVE[kind](*given), UserError, told)


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

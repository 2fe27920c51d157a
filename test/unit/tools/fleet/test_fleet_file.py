# SPDX-License-Identifier: Apache-2.0
"""Fleet files that are hostile or large: refused with a sentence, and read in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet import fleet_file
from lerobot_serve.tools.fleet.fleet_file import read_fleet
from lerobot_serve.tools.fleet.plan import fleet_plan

NULL = 'null:joints=6,chunk=30,cameras=,fps=30'
BOMB = 'a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n' + ''.join(
    f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 10)}]\n' for n in range(1, 12)
)


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        (BOMB, r'fleet\.yaml:\d+: has too many values; an alias counts as what it names'),
        ('servers: &s {v1: *s}', r'fleet\.yaml:1: is nested too deeply'),
        ('servers: ' + '[' * 100_000, r'fleet\.yaml'),
        ('servers: ' + '{a: ' * 30 + '1' + '}' * 30, r'fleet\.yaml: is nested too deeply'),
        ('robots: {a: {simulated: true, simulated: true}}', r':1: robots\.a\.simulated: is given'),
        ('robots: {1: {}, "1": {}}', r'fleet\.yaml:1: robots\.1: is given twice, also in line 1'),
        ('robots:\n  a: {}\n  b: {}\n  a: {}', r'fleet\.yaml:2: robots\.a: .* also in line 4'),
    ],
    ids=['bomb', 'alias of itself', 'brackets', 'deep', 'one line', 'text and number', 'lines'],
)
def test_a_hostile_file_is_refused_with_its_line(text, reason):
    with pytest.raises(UserError, match=reason) as raised:
        read_fleet(text, 'fleet.yaml')
    assert len(str(raised.value)) < 300


def test_aliases_and_merged_keys_stay_allowed():
    file = read_fleet(
        'servers:\n  v1: &base {policy: x, slot: a}\n  v2: {<<: *base, slot: b}\n', 'f'
    )
    assert file.content['servers']['v2'] == {'policy': 'x', 'slot': 'b'}
    assert file.lines['servers', 'v2', 'slot'] == 3


def test_a_file_without_end_is_refused_unread(monkeypatch):
    monkeypatch.setattr(fleet_file, 'TEXT_LIMIT', 10)
    with pytest.raises(UserError, match='at most 10 characters, got 11'):
        read_fleet('x' * 11, 'f')


def plan(text: str) -> None:
    fleet_plan(read_fleet(text, 'fleet.yaml'), Path('/nowhere'))


def test_a_home_of_nobody_is_an_error_with_its_place():
    text = f'servers: {{v1: {{policy: "{NULL}", trace_folder: ~nobody_at_all/x}}}}'
    with pytest.raises(UserError, match=r'fleet\.yaml:1: servers\.v1\.trace_folder: .*~nobody_at'):
        plan(text)


ROBOTS = """\
robots:
  left:
    simulated: true
  right:
    simulated: true
    {extra}
"""


def test_two_robots_of_one_client_id_are_refused_with_both_lines():
    with pytest.raises(UserError) as raised:
        plan(ROBOTS.format(extra='client_id: left'))
    text = str(raised.value)
    assert text.startswith('fleet.yaml:6: robots.right.client_id: left names two robots')
    assert 'lines 2 and 6' in text
    with pytest.raises(UserError, match='same names two robots'):
        plan('robots: {count: 2, simulated: true, client_id: same}')
    plan(ROBOTS.format(extra='client_id: other'))
    plan('robots: {count: 1, simulated: true, client_id: same}')


def test_a_file_of_20_000_lines_is_read_in_one_pass(monkeypatch):
    """It took 6 s: two passes of the reader in Python."""
    text = 'robots:\n' + ''.join(f'  r{n}:\n    simulated: true\n' for n in range(10_000))
    composed: list[int] = []
    compose = fleet_file.compose
    monkeypatch.setattr(fleet_file, 'compose', lambda text: (composed.append(1), compose(text))[1])
    file = read_fleet(text, 'f')
    assert len(file.content['robots']) == 10_000
    assert file.lines['robots', 'r9999', 'simulated'] == 20_001
    assert composed == [1]

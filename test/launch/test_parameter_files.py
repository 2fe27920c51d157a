# SPDX-License-Identifier: Apache-2.0
"""The parameter files in config/ say all there is to say, and nothing that is not so."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lerobot_serve.edge.network_profiles import PROFILES
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import build_parameters, parameter_specs
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters

CONFIG = Path(__file__).resolve().parents[2] / 'config'
PARAMETERS = {
    'policy_server': ServerParameters,
    'policy_router': RouterParameters,
    'edge_controller': EdgeParameters,
    'gateway': GatewayParameters,
    'learner': LearnerParameters,
    'sim_robot': SimParameters,
}
NODES = {
    'server.yaml': ['policy_server'],
    'edge.yaml': ['edge_controller'],
    'gateway.yaml': ['gateway'],
    'learner.yaml': ['learner'],
    'router.yaml': ['policy_router'],
    'fleet.yaml': ['edge_controller', 'sim_robot'],
}
ENTRIES = [(file, node) for file, nodes in NODES.items() for node in nodes]
# what a file that gave it would take from the profile
OF_PROFILE = set(PROFILES['wifi'])
LEFT_OUT = {
    ('edge.yaml', 'edge_controller'): OF_PROFILE,
    # no two robots may share these, the launch file gives each its own
    ('fleet.yaml', 'edge_controller'): {'client_id', *OF_PROFILE},
    ('fleet.yaml', 'sim_robot'): {'seed'},
}
NOT_THE_DEFAULT = {
    ('fleet.yaml', 'edge_controller'): {'task'},
    ('fleet.yaml', 'sim_robot'): {'outcome_topic'},
}
entries = pytest.mark.parametrize(('file', 'node'), ENTRIES)


def values(file: str, node: str) -> dict[str, object]:
    """Return the values by name; the members of a group lie below it, as ROS has it."""
    found = {}
    entries = yaml.safe_load((CONFIG / file).read_text())['/**'][node]['ros__parameters']
    for name, value in entries.items():
        members = value.items() if isinstance(value, dict) else [(None, value)]
        found |= {f'{name}.{member}' if member else name: each for member, each in members}
    return found


def test_there_are_these_files_and_no_others():
    assert {path.name for path in CONFIG.glob('*.yaml')} == set(NODES)


@pytest.mark.parametrize('file', NODES)
def test_a_file_holds_in_any_namespace_and_names_only_nodes_that_exist(file):
    content = yaml.safe_load((CONFIG / file).read_text())
    assert list(content) == ['/**']
    assert list(content['/**']) == NODES[file]


@entries
def test_every_value_is_allowed(file, node):
    build_parameters(PARAMETERS[node], values(file, node))


@entries
def test_no_parameter_is_missing(file, node):
    # a list that is empty is one that a file cannot hold
    expected = {spec.name for spec in parameter_specs(PARAMETERS[node]) if spec.default != ()}
    assert set(values(file, node)) == expected - LEFT_OUT.get((file, node), set())


@entries
def test_every_value_is_the_default_unless_the_file_gives_a_reason(file, node):
    given, default = build_parameters(PARAMETERS[node], values(file, node)), PARAMETERS[node]()
    differing = {
        spec.name
        for spec in parameter_specs(PARAMETERS[node])
        if spec.name in values(file, node)
        and getattr(given, spec.field) != getattr(default, spec.field)
    }
    assert differing == NOT_THE_DEFAULT.get((file, node), set())


@entries
def test_every_parameter_has_a_comment_with_its_text_unit_and_bounds(file, node):
    text = (CONFIG / file).read_text().partition(f'  {node}:')[2]
    for spec in parameter_specs(PARAMETERS[node]):
        if spec.name not in values(file, node):
            continue
        comment = comment_above(lines_before(text, spec.name))
        assert spec.text in comment
        assert not spec.unit or f'[{spec.unit}]' in comment
        assert spec.low is None or spec.allowed in comment
        assert comment.endswith('; live') == spec.live


def lines_before(text: str, name: str) -> list[str]:
    """Return the lines above an entry of a file; members of a group lie deeper."""
    *groups, member = name.split('.')
    indent = ' ' * 6
    for group in groups:
        text = text.partition(f'\n{indent}{group}:\n')[2]
        indent += '  '
    return text.partition(f'\n{indent}{member}: ')[0].splitlines()


def comment_above(lines: list[str]) -> str:
    """Return the comment that ends the lines, as one line."""
    comment: list[str] = []
    while lines and lines[-1].lstrip().startswith('#'):
        comment.insert(0, lines.pop().strip(' #'))
    return ' '.join(comment)

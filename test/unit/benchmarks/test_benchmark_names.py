"""Every benchmark has a name on the command line. Read from the source: measuring needs ROS."""

from __future__ import annotations

import ast

import pytest

INTERFACE = {'ABOUT', 'PARAMETERS', 'measure'}


@pytest.fixture
def package(repository):
    return repository / 'lerobot_serve'


def assigned(tree: ast.Module) -> dict[str, ast.AST]:
    """Return what a module's own lines define."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in ast.walk(target)]
            found |= {name.id: node.value for name in names if isinstance(name, ast.Name)}
    return found


def test_the_named_benchmarks_are_those_that_there_are(package):
    tree = ast.parse((package / 'cli' / 'bench.py').read_text())
    named = ast.literal_eval(assigned(tree)['NAMES'])
    measuring = {
        file.stem
        for file in (package / 'bench').glob('*.py')
        if set(assigned(ast.parse(file.read_text()))) >= INTERFACE
    }
    assert len(set(named)) == len(named)
    assert set(named) == measuring

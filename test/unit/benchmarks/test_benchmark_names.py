# SPDX-License-Identifier: Apache-2.0
"""Every benchmark has a name on the command line. Read from the source: measuring needs ROS."""

from __future__ import annotations

import ast

from support.paths import REPOSITORY

INTERFACE = {'ABOUT', 'PARAMETERS', 'measure'}
FOLDER = REPOSITORY / 'benchmarks'


def assigned(tree: ast.Module) -> dict[str, ast.AST]:
    """Return what a module's own lines define."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in ast.walk(target)]
            found |= {name.id: node.value for name in names if isinstance(name, ast.Name)}
    return found


def test_the_named_benchmarks_are_those_that_there_are():
    named = ast.literal_eval(assigned(ast.parse((FOLDER / '__main__.py').read_text()))['NAMES'])
    measuring = {
        '.'.join(file.relative_to(FOLDER).with_suffix('').parts)
        for file in FOLDER.rglob('*.py')
        if set(assigned(ast.parse(file.read_text()))) >= INTERFACE
    }
    assert len(set(named)) == len(named)
    assert set(named) == measuring

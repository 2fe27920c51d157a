# SPDX-License-Identifier: Apache-2.0
"""Every benchmark has a name on the command line. Read from the source: measuring needs ROS."""

from __future__ import annotations

import ast
from pathlib import Path

from support.paths import REPOSITORY

INTERFACE, OF_PACKAGE = {'ABOUT', 'PARAMETERS', 'measure'}, {'ABOUT', 'PARTS'}
FOLDER = REPOSITORY / 'benchmarks'


def assigned(tree: ast.Module) -> dict[str, ast.AST]:
    """Return what a module's own lines define."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names = [name for target in targets for name in ast.walk(target)]
            found |= {name.id: node.value for name in names if isinstance(name, ast.Name)}
    return found


def test_the_named_benchmarks_are_those_that_there_are():
    named = ast.literal_eval(assigned(ast.parse((FOLDER / '__main__.py').read_text()))['NAMES'])
    measuring = {file.stem for file in FOLDER.glob('*.py') if has_interface(file)}
    measuring |= {
        file.parent.name
        for file in FOLDER.glob('*/__init__.py')
        if has_interface(file, OF_PACKAGE)
    }
    assert len(set(named)) == len(named)
    assert set(named) == measuring


def test_the_parts_of_a_benchmark_are_those_that_there_are():
    for package in FOLDER.glob('*/__init__.py'):
        if has_interface(package, OF_PACKAGE):
            parts = ast.literal_eval(assigned(ast.parse(package.read_text()))['PARTS'])
            files = {file.stem for file in package.parent.glob('[!_]*.py') if has_interface(file)}
            assert set(parts) == files, package.parent


def has_interface(file: Path, interface: set[str] = INTERFACE) -> bool:
    return set(assigned(ast.parse(file.read_text()))) >= interface

# SPDX-License-Identifier: Apache-2.0
"""The launch files, read as text: for machines without the launch packages."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from lerobot_serve.tools.cli.verbs import record

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted((REPOSITORY / 'launch').glob('*.launch.py'))
files = pytest.mark.parametrize('file', FILES, ids=lambda file: file.name)
# those that start nodes with parameter files; the others start verbs
OF_NODES = [file for file in FILES if file.name != 'recorder.launch.py']
of_nodes = pytest.mark.parametrize('file', OF_NODES, ids=lambda file: file.name)


def calls(file: Path, name: str) -> Iterator[str]:
    """Yield the first argument of every call of launch_support.NAME."""
    for found in ast.walk(ast.parse(file.read_text())):
        if isinstance(found, ast.Call) and ast.unparse(found.func) == f'launch_support.{name}':
            yield found.args[0].value


def executables() -> set[str]:
    own = 'lerobot_serve.entry_points:'
    commands = metadata.entry_points(group='console_scripts')
    return {each.name for each in commands if each.value.startswith(own)}


def test_there_are_these_files():
    names = [file.name for file in FILES]
    begins = [name.partition('.')[0] for name in names]
    assert begins == ['ab', 'edge', 'fleet', 'gateway', 'learner', 'recorder', 'server']


@files
def test_it_compiles(file):
    compile(file.read_text(), file, 'exec')


@of_nodes
def test_it_starts_only_executables_that_are_installed(file):
    started = set(calls(file, 'node_action'))
    assert started
    assert started <= executables()


def test_a_recorder_is_the_verb_with_its_options():
    file = REPOSITORY / 'launch' / 'recorder.launch.py'
    assert list(calls(file, 'verb_action')) == ['record']
    parser = argparse.ArgumentParser()
    record.add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    (names,) = (
        ast.literal_eval(found.value)
        for found in ast.parse(file.read_text()).body
        if isinstance(found, ast.Assign)
    )
    assert {f'--{name.replace("_", "-")}' for name in (*names, 'namespace')} <= flags


@of_nodes
def test_its_parameter_files_exist(file):
    named = list(calls(file, 'params_file'))
    assert named
    assert all((REPOSITORY / 'config' / name).is_file() for name in named)


@files
def test_it_takes_a_namespace_so_that_two_groups_live_in_one_domain(file):
    options = [
        argument.value
        for found in ast.walk(ast.parse(file.read_text()))
        if isinstance(found, ast.Call)
        and ast.unparse(found.func) == 'launch_support.launch_options'
        for argument in found.args
    ]
    assert 'namespace' in options
    # of every node that it starts
    for found in ast.walk(ast.parse(file.read_text())):
        if isinstance(found, ast.Call) and ast.unparse(found.func).endswith('.node_action'):
            given = [keyword.arg for keyword in found.keywords]
            assert 'namespace' in given or 'everywhere' in ast.unparse(found)


@files
def test_it_knows_its_own_name(file):
    assert list(calls(file, 'launch_description')) == [file.name]

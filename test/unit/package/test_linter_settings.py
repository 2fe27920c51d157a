# SPDX-License-Identifier: Apache-2.0
"""ruff and the linters of a ROS 2 installation ask for the same; package.xml files are valid."""

from __future__ import annotations

import ast
from configparser import ConfigParser
import re

import pytest
from support.paths import REPOSITORY

AMENT_DOCSTRING_EXCEPTIONS = {
    *('D100', 'D101', 'D102', 'D103', 'D104', 'D105', 'D106', 'D107', 'D203', 'D212', 'D404'),
}


@pytest.fixture
def ruff() -> str:
    return (REPOSITORY / 'ruff.toml').read_text()


@pytest.fixture
def flake8():
    parser = ConfigParser()
    parser.read(REPOSITORY / 'setup.cfg')
    return parser['flake8']


def constant(file: str, name: str) -> object:
    """Return the value of a constant, without importing the module."""
    for node in ast.parse((REPOSITORY / file).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f'{file} has no constant {name}')


def test_lines_have_one_limit(ruff, flake8):
    assert f'line-length = {flake8["max-line-length"]}\n' in ruff


def test_quotes_are_the_same(ruff, flake8):
    assert f'inline-quotes = "{flake8["inline-quotes"]}"' in ruff


def test_our_own_packages_are_the_same(ruff, flake8):
    names = re.search(r'known-first-party = \[(.*)\]', ruff)[1]
    assert names.replace('"', '').replace(' ', '') == flake8['application-import-names']


def test_docstrings_have_the_same_exceptions(ruff):
    ours = constant('test/launch/test_ament_linters.py', 'DOCSTRING_EXCEPTIONS')
    assert '"D"' in ruff
    assert set(re.findall(r'"(D\d+)"', ruff)) == AMENT_DOCSTRING_EXCEPTIONS | {*ours}


@pytest.mark.parametrize('folder', ['.', 'lerobot_serve_interfaces'])
def test_a_package_manifest_is_valid(folder):
    package = pytest.importorskip(
        'catkin_pkg.package', reason='catkin_pkg, with which colcon reads package.xml, is missing'
    )
    warnings: list[str] = []
    found = package.parse_package(str(REPOSITORY / folder), warnings=warnings)
    found.validate(warnings)
    assert not warnings

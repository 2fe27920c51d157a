# SPDX-License-Identifier: Apache-2.0
"""The linters of a ROS 2 installation, on what is installed; `make lint` asks for the same."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
import shutil
from types import ModuleType
from urllib.request import urlopen

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLED = ('lerobot_serve', 'launch', 'setup.py')
MANIFESTS = ('package.xml', 'lerobot_serve_interfaces/package.xml')
# beyond ament's own exceptions, as in ruff.toml
DOCSTRING_EXCEPTIONS = ('D200', 'D205', 'D400', 'D401', 'D403', 'D415')


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def linter(name: str) -> ModuleType:
    """Return the main module of a linter; skip where no ROS 2 installation has it."""
    try:
        return import_module(f'{name}.main')
    except ModuleNotFoundError:
        pytest.skip(f'{name} comes with a ROS 2 installation, and none that has it is sourced')


def test_flake8():
    status, errors = linter('ament_flake8').main_with_errors(
        argv=['--config', 'setup.cfg', *INSTALLED]
    )
    assert status == 0, '\n'.join(errors)


def test_docstrings():
    exceptions = ['--add-ignore', *DOCSTRING_EXCEPTIONS]
    assert linter('ament_pep257').main(argv=[*INSTALLED, *exceptions]) == 0


def test_package_manifests():
    xmllint = linter('ament_xmllint')
    if not shutil.which('xmllint'):
        pytest.skip('xmllint is not installed; on Debian or Ubuntu: apt install libxml2-utils')
    if not schema_can_be_read():
        pytest.skip('the schema of package.xml is on the network, which cannot be reached')
    assert xmllint.main(argv=list(MANIFESTS)) == 0


def schema_can_be_read() -> bool:
    """Return whether xmllint will be able to fetch what package.xml names as its schema."""
    text = Path('package.xml').read_text()
    address = text.partition('href="')[2].partition('"')[0]
    try:
        with urlopen(address, timeout=10):
            return True
    except OSError:
        return False

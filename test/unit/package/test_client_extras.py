# SPDX-License-Identifier: Apache-2.0
"""
The requirements and extras of setup.py are what the client and the verbs without ROS need: with
nothing else to import they run.

test_client_installed.py does so with pip, in an environment of its own.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
import json
import os
import re
import runpy
import subprocess
import sys
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
import pytest
import setuptools
from support.gateway.door_thread import DoorThread
from support.paths import REPOSITORY

LIMIT_S = 60.0
CLIENT, EXTRAS = '', ('client-grpc', 'ops')
TRACES = REPOSITORY / 'docs' / 'incidents' / 'stutter'
# in the place of an environment in which only some packages are installed
ONLY = """
import json, sys
installed = {*json.loads(sys.argv[1]), *sys.stdlib_module_names, 'lerobot_serve'}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] not in installed:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Absent())
"""
OVER_ZENOH = """
import numpy
from lerobot_serve.client import PolicyClient
from lerobot_serve.client.fake_server import CAMERAS, FakeServer
import lerobot_serve.client.link
images = {CAMERAS[0].name: numpy.zeros((4, 6, 3), numpy.uint8)}
with PolicyClient(FakeServer().connection()) as client:
    with client.open(codec='jpeg') as session:
        print(session.predict((0, 0), images).actions.shape)
"""
OVER_GRPC = """
import numpy
from lerobot_serve.client import PolicyClient
with PolicyClient.connect(sys.argv[2], timeout_s=20) as client:
    images = {client.describe().camera_names[0]: numpy.zeros((48, 64, 3), numpy.uint8)}
    with client.open() as session:
        print(session.predict(numpy.zeros(3), images).actions.shape)
"""
# what is printed is not compared: other tests do
OPERATED = """
from lerobot_serve.tools.cli.main import main
traces, folder = sys.argv[2:]
sys.stderr = sys.stdout
for words in (
    ['audit', traces],
    ['diagnose', traces, '--client', 'robot_217'],
    ['doctor'],
    ['keys', 'init', '--site', 'lab', '--folder', folder],
    ['plan', '--robots', '10', '--inference-ms', '20'],
    ['route', '--split', '50', 'episode_1'],
    ['stats', traces],
    ['versions', 'list', '--store', folder],
):
    main(words)
"""
REFUSED = """
from lerobot_serve.client import PolicyClient
try:
    PolicyClient.connect(sys.argv[2], timeout_s=1)
except Exception as error:
    print(error)
"""


@cache
def setup_arguments() -> dict[str, Any]:
    """Return what setup.py gives to setuptools."""
    found: dict[str, Any] = {}
    original, folder = setuptools.setup, os.getcwd()
    os.chdir(REPOSITORY)
    setuptools.setup = found.update
    try:
        runpy.run_path('setup.py')
    finally:
        setuptools.setup = original
        os.chdir(folder)
    return found


def requirements_of(extra: str) -> list[Requirement]:
    """Return the packages that come with an extra, or without one."""
    given = setup_arguments()
    texts = given['install_requires'] + (given['extras_require'][extra] if extra else [])
    return [Requirement(text) for text in texts]


def modules_of(extra: str) -> list[str]:
    """Return what can be imported where an extra is installed, with what its packages need."""
    wanted, installed = {each.name for each in requirements_of(extra)}, set()
    while wanted:
        name = wanted.pop()
        installed.add(canonical(name))
        needs = [Requirement(each) for each in metadata.requires(name) or ()]
        needs = [each for each in needs if each.marker is None or each.marker.evaluate()]
        wanted |= {each.name for each in needs if canonical(each.name) not in installed}
    by_module = metadata.packages_distributions()
    return [m for m, names in by_module.items() if installed & {canonical(n) for n in names}]


def canonical(name: str) -> str:
    return re.sub(r'[-_.]+', '-', name).lower()


def run(extra: str, code: str, *words: str) -> str:
    command = [sys.executable, '-c', ONLY + code, json.dumps(modules_of(extra)), *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_the_client_runs_with_the_requirements_alone():
    assert run(CLIENT, OVER_ZENOH) == '(3, 2)'


@pytest.mark.usefixtures('grpc_thread')
def test_over_grpc_the_client_runs_with_its_extra_alone():
    door = DoorThread()
    try:
        assert run('client-grpc', OVER_GRPC, f'grpc://{door.address}') == '(4, 3)'
    finally:
        door.close()


def test_verbs_without_ros_run_with_their_extra_alone(tmp_path):
    shown = run('ops', OPERATED, str(TRACES), str(tmp_path / 'keys'))
    # of the doctor; each other verb has gone on to its end
    assert shown.count('`make shell` in a clone') == 1
    assert 'package cv2: is not installed here' in shown
    assert 'the Python package' not in shown


def test_without_the_extra_for_grpc_the_address_is_refused_with_the_command():
    assert 'client-grpc' in run(CLIENT, REFUSED, 'grpc://127.0.0.1:1')


@pytest.mark.parametrize('extra', EXTRAS)
def test_the_versions_that_are_tested_are_allowed(extra):
    for requirement in requirements_of(extra):
        assert metadata.version(requirement.name) in requirement.specifier, requirement


def test_the_python_that_is_required_is_that_of_the_page():
    page = (REPOSITORY / 'docs' / 'python_client.md').read_text()
    (oldest,) = re.findall(r'Python (3\.\d+) or newer', page)
    allowed = SpecifierSet(setup_arguments()['python_requires'])
    major, minor = map(int, oldest.split('.'))
    assert oldest in allowed and f'{major}.{minor - 1}' not in allowed
    assert '.'.join(map(str, sys.version_info[:3])) in allowed

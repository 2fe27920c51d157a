# SPDX-License-Identifier: Apache-2.0
"""Remedies and pages name the pins of requirements.txt, those of the Python that reads them."""

from __future__ import annotations

import importlib.util
from itertools import chain
import re
import sys

import pytest
from support.paths import REPOSITORY

from lerobot_serve import requirements
from lerobot_serve.gateway.door_parameters import DOORS
from lerobot_serve.policies.lerobot import hub_download
from lerobot_serve.policies.registry import _install_command
from lerobot_serve.requirements import FROM_ROS

PYTHONS = [(3, 10), (3, 11), (3, 12), (3, 13)]
# from 3.12 on they have other versions than before
CHANGING = ['huggingface_hub', 'lerobot', 'torch', 'torchvision', 'transformers']


def pinned(python: tuple[int, int], distro: str = 'jazzy') -> dict[str, str]:
    """Return pip name -> pin of what this package installs for a Python."""
    spec = importlib.util.spec_from_file_location('pins', REPOSITORY / '.ci' / 'pins.py')
    pins = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pins)
    text = (REPOSITORY / 'requirements.txt').read_text()
    sections = pins.read(text, distro, '.'.join(map(str, python)))
    # of peers: a benchmark installs them into a folder of its own
    del sections['bench']
    return {pin.partition('==')[0]: pin for pin in chain(*sections.values())}


@pytest.fixture(params=[(3, 11), (3, 12)])
def python(request, monkeypatch):
    """Make the requirements those of each Python."""
    monkeypatch.setattr(requirements, 'REQUIREMENTS', requirements.requirements_for(request.param))
    return request.param


@pytest.mark.parametrize('distro', ['jazzy', 'kilted'])
@pytest.mark.parametrize('version', PYTHONS)
def test_each_requirement_is_the_pin_of_its_python(version, distro):
    pins = pinned(version, distro)
    for requirement in requirements.requirements_for(version).values():
        assert pins[requirement.partition('==')[0]] == requirement


def test_the_requirements_are_those_of_the_running_python():
    assert requirements.requirements_for(sys.version_info[:2]) == requirements.REQUIREMENTS


@pytest.mark.parametrize('package', [*CHANGING, 'safetensors'])
def test_the_remedy_of_a_missing_package_is_that_of_the_python(python, package):
    command = f'python3 -m pip install {pinned(python)[package.replace("_", "-")]}'
    text = f'the Python package {package} is missing; {command}'
    error = ModuleNotFoundError(name=f'{package}.part')
    assert requirements.missing_package_text(error) == text


def missing(monkeypatch, *absent: str):
    """Let packages be missing, and return the text of the first one."""
    monkeypatch.setattr(requirements, '_is_importable', lambda name: name not in absent)
    return requirements.missing_package_text(ModuleNotFoundError(name=absent[0]))


def test_what_is_missing_together_is_named_in_one_run(monkeypatch):
    text = missing(monkeypatch, 'yaml', 'cv2', 'lerobot', 'mcap')
    command = requirements.install_command('yaml', 'cv2')
    assert text == f'the Python packages yaml, cv2 are missing; {command}'
    assert missing(monkeypatch, 'no_such_package').endswith(
        'no_such_package is missing; install it'
    )


@pytest.mark.parametrize(
    ('absent', 'said'),
    [
        # a plain environment of pip: whatever is imported first
        (('ament_index_python', *FROM_ROS), '`make shell` in a clone'),
        (('std_msgs', 'rclpy', 'lerobot_serve_interfaces'), '`make shell` in a clone'),
        # a plain `colcon build`: a setup.bash was sourced
        (('lerobot_serve_interfaces',), 'colcon build --base-paths . lerobot_serve_interfaces'),
        (('nav_msgs', 'lerobot_serve_interfaces'), 'colcon build --base-paths .'),
        (('nav_msgs', 'std_srvs'), 'nav_msgs, std_srvs of ROS 2 is not installed; in the folder'),
    ],
)
def test_the_remedy_of_what_is_missing_from_ros_is_that_of_its_cause(monkeypatch, absent, said):
    text = missing(monkeypatch, *absent)
    assert said in text
    assert ('of ROS 2 and of this workspace' in text) == ('rclpy' in absent)


def test_each_package_that_changes_is_tried_above():
    old, new = requirements.requirements_for((3, 11)), requirements.requirements_for((3, 12))
    assert [name for name in old if old[name] != new[name]] == CHANGING


@pytest.mark.parametrize(
    ('module', 'packages'),
    [
        ('torch.nn', ['torch', 'safetensors']),
        ('onnxruntime', ['onnxruntime']),
        ('zmq', ['pyzmq']),
        ('grpc.aio', ['grpcio']),
        ('', ['torch', 'safetensors']),
    ],
)
def test_the_remedy_of_a_policy_kind_is_that_of_the_python(python, module, packages):
    pins = ' '.join(pinned(python)[name] for name in packages)
    assert _install_command(ImportError(name=module)) == f'python3 -m pip install {pins}'


def test_the_remedy_of_a_download_is_that_of_the_python(python, monkeypatch):
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    refused = hub_download.answer('user/policy', 'main')['refused']
    assert refused.endswith(
        f'; install it: python3 -m pip install {pinned(python)["huggingface-hub"]}'
    )


def test_doors_name_the_pins():
    for entry in DOORS.values():
        assert entry.packages
        assert entry.packages.items() <= requirements.REQUIREMENTS.items()


def test_pages_name_the_pins():
    """Ubuntu's ROS 2 and so most readers have Python 3.12."""
    pins = pinned((3, 12))
    files = [REPOSITORY / 'README.md', *(REPOSITORY / 'docs').glob('*.md')]
    named = {
        (file.name, *found)
        for file in files
        for found in re.findall(r'\b([\w-]+)==(\d[\w.]*)', file.read_text())
    }
    assert {('quick_start.md', 'torch', pins['torch'].partition('==')[2])} <= named
    assert not {each for each in named if pins.get(each[1]) != f'{each[1]}=={each[2]}'}

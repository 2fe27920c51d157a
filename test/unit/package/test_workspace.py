# SPDX-License-Identifier: Apache-2.0
"""What `make` says when the machine lacks something: one line, with the remedy."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

CI = REPOSITORY / '.ci'
CLEARED = ('ROS_DISTRO', 'AMENT_PREFIX_PATH', 'PYTHONPATH', 'LEROBOT_SERVE_SHELL', 'CXX')


@pytest.fixture
def modules(monkeypatch):
    """The two modules of .ci, which are no package."""
    monkeypatch.syspath_prepend(str(CI))
    import machine
    import workspace

    yield machine, workspace
    for name in ('machine', 'pins', 'workspace'):
        del sys.modules[name]


@pytest.fixture
def make(tmp_path):
    """Runs the preparation in an empty copy of the repository; returns status and output."""
    shutil.copytree(CI, tmp_path / '.ci')
    shutil.copy(CI.parent / 'requirements.txt', tmp_path)

    def run(*command: str, **variables: str) -> tuple[int, str]:
        environment = {k: v for k, v in os.environ.items() if k not in CLEARED}
        result = subprocess.run(
            [sys.executable, '.ci/workspace.py', *command],
            cwd=tmp_path,
            env=environment | {'TORCH': 'none'} | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert 'Traceback' not in result.stderr
        return result.returncode, result.stderr

    return run


def test_a_missing_compiler_is_named_with_the_remedy(make):
    status, said = make('true', CXX='no-such-compiler')
    assert status == 1
    assert 'no C++ compiler (no-such-compiler)' in said
    assert 'apt install g++' in said


@pytest.mark.slow
def test_no_network_is_told_as_such(make):
    nowhere = 'http://127.0.0.1:9/simple'
    status, said = make(
        'true',
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL=nowhere,
        PIP_EXTRA_INDEX_URL='',
        PIP_FIND_LINKS='',
        PIP_RETRIES='1',
    )
    assert status == 1
    assert 'no network' in said
    assert 'PIP_INDEX_URL' in said


@pytest.mark.parametrize(('name', 'value'), [('ROS', 'melodic'), ('TORCH', 'tpu')])
def test_an_unknown_choice_names_the_known_ones(make, name, value):
    status, said = make('true', **{name: value})
    assert status == 1
    assert f'{name} must be ' in said
    assert f"got '{value}'" in said


def test_no_command_says_what_to_type(make):
    status, said = make()
    assert status == 1
    assert 'COMMAND' in said


def test_a_python_that_does_not_fit_is_named(modules, monkeypatch):
    machine, _ = modules
    monkeypatch.setattr(machine, 'PYTHONS', ((3, 98), (3, 99)))
    with pytest.raises(machine.Problem, match=r'Python 3\.98 to 3\.99 is needed.*make PYTHON='):
        machine.supported_python()


def test_a_sourced_ros_without_its_python_is_told(modules, monkeypatch):
    machine, _ = modules
    monkeypatch.setenv('ROS_DISTRO', 'jazzy')
    monkeypatch.setenv('AMENT_PREFIX_PATH', '/opt/ros/jazzy')
    monkeypatch.delenv('LEROBOT_SERVE_SHELL', raising=False)
    monkeypatch.setattr(sys, 'executable', shutil.which('false'))
    with pytest.raises(machine.Problem, match=r'jazzy is sourced, but .* cannot import rclpy'):
        machine.sourced_distro()


def test_a_full_disk_is_told(modules, monkeypatch, tmp_path):
    machine, _ = modules
    monkeypatch.setattr(machine, 'FREE_DISK_GB', {'cpu': 1e9, 'none': 0})
    with pytest.raises(machine.Problem, match='make room'):
        machine.check_disk(tmp_path, 'cpu')
    machine.check_disk(tmp_path, 'none')


@pytest.mark.parametrize(
    ('torch', 'has_cpu_build', 'last'),
    [
        ('none', True, []),
        ('cpu', True, ['torch+cpu', 'torchvision+cpu']),
        ('cpu', False, ['torch+cpu', 'torchvision+cpu', 'torchvision', 'operators checked']),
        ('cuda', True, []),
    ],
)
def test_each_package_is_of_the_build_of_torch(
    modules, monkeypatch, tmp_path, capsys, torch, has_cpu_build, last
):
    machine, workspace = modules
    asked = []

    def step(made, name: str, command: list[object], blame: str) -> None:
        asked.append(list(map(str, command)))
        if asked[-1][-1].startswith('torchvision') and not has_cpu_build:
            raise machine.Problem('no such build')

    monkeypatch.setattr(workspace, 'ROOT', tmp_path)
    monkeypatch.setattr(machine, 'FREE_DISK_GB', {torch: 0})
    monkeypatch.setattr(workspace.Workspace, 'step', step)
    monkeypatch.setattr(
        workspace.Workspace, 'declare_operators', lambda made: asked.append(['operators checked'])
    )
    prepared = workspace.Workspace(sourced='jazzy', distro='jazzy', torch=torch)
    with prepared.lock():
        prepared.install()
    _, tools, packages, *rest = asked
    assert [re.sub(r'==[^+]*', '', named(command)) for command in rest] == last
    sections = workspace.pins.read(workspace.REQUIREMENTS.read_text(), 'jazzy', prepared.version)
    assert listed(tools) == sections['build']
    wanted = [*sections['run'], *sections['test']]
    wanted += [] if torch == 'none' else [*sections['torch'], *sections['lerobot']]
    wanted += sections['cuda'] if torch == 'cuda' else []
    vision = [pin for pin in sections['lerobot'] if pin.startswith('torchvision==')]
    alone = {sections['torch'][0], *vision} if torch == 'cpu' else set()
    assert sorted(listed(packages)) == sorted(set(wanted) - alone)
    assert ('no CPU build of torchvision' in capsys.readouterr().err) is not has_cpu_build
    assert all('--no-deps' in command for command in (tools, packages, *rest[:2]))


def named(command: list[str]) -> str:
    """Return what a command installs: its last word, or the one pin of the file that it names."""
    return command[-1] if '--requirement' not in command else listed(command)[0]


def listed(command: list[str]) -> list[str]:
    """Return the pins of the file of a command."""
    return [line.split()[0] for line in Path(command[-1]).read_text().splitlines()]


@pytest.mark.parametrize(
    ('error', 'is_written'),
    [('', False), ('no module', False), ('operator torchvision::nms does not exist', True)],
)
def test_operators_are_declared_where_their_library_does_not_load(
    modules, monkeypatch, tmp_path, error, is_written
):
    _, workspace = modules
    prepared = workspace.Workspace(sourced='', distro='jazzy', torch='cpu')
    prepared.venv = tmp_path
    packages = tmp_path / f'lib/python{prepared.version}/site-packages'
    packages.mkdir(parents=True)
    stale = packages / 'torchvision_operators.pth'
    stale.write_text('import torchvision_operators\n')
    python = tmp_path / 'bin/python'
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "{error}" >&2\n')
    python.chmod(0o755)
    prepared.declare_operators()
    assert stale.exists() is is_written
    assert (packages / 'torchvision_operators.py').exists() is is_written


def test_pins_differ_by_distribution_where_they_say_so(modules):
    _, workspace = modules
    text = workspace.REQUIREMENTS.read_text()
    jazzy, kilted = (workspace.pins.read(text, distro, '3.11') for distro in ('jazzy', 'kilted'))
    assert set(jazzy) == {
        *('ros', 'build', 'run', 'torch', 'cuda', 'lerobot', 'test', 'docs', 'bench')
    }
    assert jazzy['ros'][0] == 'ros-rclpy[fastrtps]==7.1.6'
    assert kilted['ros'][0] == 'ros-rclpy[fastrtps]==9.1.2'
    assert jazzy['run'] == kilted['run']
    assert 'ros-fastrtps==2.14.5' in {*jazzy['ros']} - {*kilted['ros']}
    assert 'ros-fastdds==3.2.3' in {*kilted['ros']} - {*jazzy['ros']}


@pytest.mark.parametrize(
    ('python', 'lerobot', 'torch'),
    [
        ('3.10', 'lerobot==0.4.4', 'torch==2.13.0'),
        ('3.11', 'lerobot==0.4.4', 'torch==2.13.0'),
        ('3.12', 'lerobot==0.6.1', 'torch==2.11.0'),
        ('3.13', 'lerobot==0.6.1', 'torch==2.11.0'),
    ],
)
def test_pins_differ_by_python_where_they_say_so(modules, python, lerobot, torch):
    _, workspace = modules
    sections = workspace.pins.read(workspace.REQUIREMENTS.read_text(), 'jazzy', python)
    assert [pin for pin in sections['lerobot'] if pin.startswith('lerobot==')] == [lerobot]
    assert sections['torch'][0] == torch
    assert ('httpcore==1.0.9' in sections['lerobot']) == (lerobot == 'lerobot==0.6.1')


PINS = """
# [run]
one==1.0    # kilted: 2.0
two==1.0    # py3.12: 2.0
both==1.0   # kilted: 2.0, py3.12: 3.0
# kilted also: three==1.0
# jazzy also: old==1.0
# py3.12 also: four==1.0
# a sentence about py3.12 and kilted
"""


@pytest.mark.parametrize(
    ('distro', 'python', 'expected'),
    [
        ('jazzy', '3.9', ['one==1.0', 'two==1.0', 'both==1.0', 'old==1.0']),
        ('kilted', '3.11', ['one==2.0', 'two==1.0', 'both==2.0', 'three==1.0']),
        ('jazzy', '3.12', ['one==1.0', 'two==2.0', 'both==3.0', 'old==1.0', 'four==1.0']),
        ('jazzy', '3.13', ['one==1.0', 'two==2.0', 'both==3.0', 'old==1.0', 'four==1.0']),
    ],
)
def test_a_comment_holds_for_its_distribution_or_from_its_python_on(
    modules, distro, python, expected
):
    _, workspace = modules
    assert workspace.pins.read(PINS, distro, python) == {'run': expected}


def test_two_versions_that_both_hold_are_an_error(modules):
    _, workspace = modules
    with pytest.raises(ValueError, match=r'two versions hold for kilted and Python 3\.12: both'):
        workspace.pins.read(PINS, 'kilted', '3.12')


@pytest.mark.parametrize(
    ('distro', 'python'),
    [(distro, python) for distro in ('jazzy', 'kilted') for python in ('3.11', '3.12')],
)
def test_each_package_is_pinned_once(modules, distro, python):
    _, workspace = modules
    sections = workspace.pins.read(workspace.REQUIREMENTS.read_text(), distro, python)
    # of peers: a benchmark installs them into a folder of its own
    del sections['bench']
    names = []
    for pin in itertools.chain(*sections.values()):
        name, _, version = pin.partition('==')
        assert version, f'{pin} has no version'
        names.append(re.sub(r'[-_.]+', '-', name.lower()))
    assert sorted(set(names)) == sorted(names)


def test_a_torch_that_the_index_lacks_has_a_remedy(modules, monkeypatch, tmp_path):
    machine, workspace = modules
    monkeypatch.setattr(workspace, 'ROOT', tmp_path)
    made = workspace.Workspace(sourced='', distro='jazzy', torch='cpu')
    failing = tmp_path / 'python'
    failing.write_text('#!/bin/sh\necho "No matching distribution found for ${11}"; exit 1\n')
    failing.chmod(0o755)
    monkeypatch.setattr(made, 'bin', lambda name: failing)
    with made.lock(), pytest.raises(machine.Problem, match=r'torch==9\.9\.9\+cpu.*TORCH=cuda'):
        made.install_cpu_build('torch==9.9.9')


def test_modules_are_compiled_once(modules, monkeypatch):
    """A container image that forbids it would make each start and each test run slower."""
    _, workspace = modules
    monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
    made = workspace.Workspace(sourced='', distro='jazzy', torch='none')
    assert 'PYTHONDONTWRITEBYTECODE' not in made.environment()


def test_an_image_leaves_out_what_only_tests_need(modules):
    machine, workspace = modules
    image = workspace.Workspace(sourced='', distro='jazzy', torch='none', tests='none')
    assert image.sections == ['ros', 'run']
    assert image.folder.name.endswith('-torch-none-no-tests')
    with pytest.raises(machine.Problem, match="TESTS must be all or none, got 'some'"):
        workspace.Workspace(sourced='', distro='jazzy', torch='none', tests='some')

# SPDX-License-Identifier: Apache-2.0
"""What setup.py, package.xml, requirements.txt and the Makefile promise each other."""

from __future__ import annotations

import ast
import functools
from importlib import import_module
import os
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import setuptools

from lerobot_serve.requirements import FROM_ROS, REQUIREMENTS

LARGEST_BYTES = 1_000_000
PAGE = 'lerobot_serve/tools/dashboard/page'
TOP_LEVEL = {
    *('benchmarks', '.pre-commit-config.yaml', 'SECURITY.md', 'mkdocs.yml'),
    *('.ci', '.gitignore', 'CHANGELOG.md', 'CONTRIBUTING.md', 'LICENSE', 'Makefile', 'README.md'),
    *('.dockerignore', '.github', 'QUALITY_DECLARATION.md', 'examples'),
    *('config', 'docs', 'launch', 'lerobot_serve', 'lerobot_serve_interfaces', 'package.xml'),
    *('requirements.txt', 'resource', 'ruff.toml', 'setup.cfg', 'setup.py', 'test', 'typings'),
}
# imported name -> rosdep key, where they differ; None for what rosdep does not know
KEYS = {
    'aiohttp': 'python3-aiohttp',
    'cv2': 'python3-opencv',
    'numpy': 'python3-numpy',
    'yaml': 'python3-yaml',
    'prometheus_client': 'python3-prometheus-client',
    'argcomplete': 'python3-argcomplete',
    'rich': 'python3-rich',
    'cryptography': None,
    'google': None,
    'grpc': None,
    'grpc_health': None,
    'grpc_reflection': None,
    'huggingface_hub': None,
    'lz4': None,
    'mcap': None,
    'zstandard': None,
    'msgpack': None,
    'msgspec': None,
    'psycopg': None,
    'zmq': None,
    'rerun': None,
    'zenoh': None,
    'simplejpeg': 'python3-simplejpeg-pip',
    'torch': None,
    'safetensors': None,
    'onnxruntime': None,
    'lerobot': None,
    'av': None,
    'datasets': None,
    'pyarrow': None,
    'PIL': None,
    'tqdm': None,
    'tokenizers': None,
    'torchvision': None,
    'transformers': None,
    'launch': 'launch',
    'launch_ros': 'launch_ros',
}


@pytest.fixture
def tracked(repository) -> list[str]:
    """What git would give to others; a source tree without git has nobody's files beside it."""
    listed = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=repository, capture_output=True, text=True, timeout=60
    )
    if listed.returncode:
        pytest.skip(f'not a checkout of git: {listed.stderr.strip()}')
    names = listed.stdout.split('\0')[:-1]
    return [name for name in names if (repository / name).exists()]


# import name -> name on PyPI where they differ
PACKAGES = {
    'PIL': 'pillow',
    'google': 'protobuf',
    'grpc': 'grpcio',
    'grpc_health': 'grpcio-health-checking',
    'grpc_reflection': 'grpcio-reflection',
    'huggingface_hub': 'huggingface-hub',
    'rerun': 'rerun-sdk',
    'zenoh': 'eclipse-zenoh',
    'zmq': 'pyzmq',
}


@functools.cache
def third_party(repository) -> set[str]:
    names = set()
    for folder in (repository / 'lerobot_serve', repository / 'benchmarks'):
        for file in folder.rglob('*.py'):
            # what is measured beside this package is not a part of it
            is_peer = file.is_relative_to(repository / 'benchmarks' / 'peers')
            names |= imported(file) - (of_peers(repository) if is_peer else set())
    names -= {'benchmarks'}
    return names - set(sys.stdlib_module_names) - {'lerobot_serve'}


def imported(file) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split('.')[0])
    return names


def of_peers(repository) -> set[str]:
    section = (repository / 'requirements.txt').read_text().partition('# [bench]')[2]
    return {pin.replace('-', '_') for pin in re.findall(r'^([\w-]+)==', section, re.M)}


def test_every_import_is_a_named_dependency(repository):
    root = ElementTree.parse(repository / 'package.xml').getroot()
    named = {element.text for tag in ('depend', 'exec_depend') for element in root.iter(tag)}
    requirements = (repository / 'requirements.txt').read_text()
    for name in third_party(repository):
        key = KEYS.get(name, name)
        if key is None:
            assert re.search(rf'^{PACKAGES.get(name, name)}==', requirements, re.M), name
        else:
            assert key in named, f'package.xml does not name {key}'


def test_every_import_has_a_remedy_when_it_is_missing(repository):
    of_launch_files = {'launch', 'launch_ros'}
    assert third_party(repository) - of_launch_files == {*FROM_ROS, *REQUIREMENTS}


def test_both_packages_have_the_same_version(repository):
    import lerobot_serve

    for folder in ('.', 'lerobot_serve_interfaces'):
        root = ElementTree.parse(repository / folder / 'package.xml').getroot()
        assert root.get('format') == '3'
        assert root.findtext('version') == lerobot_serve.__version__
    assert f"version='{lerobot_serve.__version__}'" in (repository / 'setup.py').read_text()


NODES = {
    *('policy_server', 'policy_router', 'edge_controller', 'gateway', 'learner', 'sim_robot'),
}


@pytest.mark.parametrize(
    ('command', 'nodes'),
    [
        (['egg_info', 'build', 'install', '--record', 'log'], NODES),
        (['develop', '--editable', '--no-deps'], NODES),
        # so colcon reads which files to link
        (['--dry-run'], NODES),
        # pip, which puts what it gets on the PATH of an environment
        (['dist_info', '--output-dir', 'out'], set()),
        (['bdist_wheel'], set()),
        (['editable_wheel'], set()),
    ],
)
def test_commands_are_declared(repository, monkeypatch, command, nodes):
    found = {}
    monkeypatch.setattr(setuptools, 'setup', found.update)
    monkeypatch.setattr(sys, 'argv', ['setup.py', *command])
    monkeypatch.chdir(repository)
    runpy.run_path('setup.py')
    declared = dict(each.split(' = ') for each in found['entry_points']['console_scripts'])
    assert set(declared) == {'lerobot-serve', *nodes}
    for target in declared.values():
        module, function = target.split(':')
        assert callable(getattr(import_module(module), function))
    # one file of a wheel, not two of one name
    assert ('bin' in dict(found['data_files'])) == bool(nodes)


def test_the_types_and_the_page_of_the_dashboard_are_installed(repository, tmp_path):
    command = [sys.executable, 'setup.py', '-q', 'build', '--build-base', str(tmp_path)]
    environment = {**os.environ, 'PYTHONDONTWRITEBYTECODE': '1'}
    subprocess.run(
        [*command, 'egg_info', '--egg-base', str(tmp_path)],
        cwd=repository,
        env=environment,
        check=True,
        timeout=120,
    )
    installed = tmp_path / 'lib' / 'lerobot_serve'
    assert (installed / 'py.typed').is_file()
    page = repository / PAGE
    assert {file.name for file in (installed / 'tools/dashboard/page').iterdir()} == {
        file.name for file in page.iterdir()
    }


def test_what_is_by_others_has_its_licence_beside_it(repository):
    library = (repository / PAGE / 'uPlot.iife.min.js').read_text()
    assert '(v1.6.32)' in library[:100]
    licence = (repository / PAGE / 'uPlot.LICENSE').read_text()
    assert 'The MIT License' in licence and 'Leon Sorokin' in licence
    manifest = (repository / 'package.xml').read_text()
    assert f'<license file="{PAGE}/uPlot.LICENSE">MIT</license>' in manifest


def test_every_pin_is_exact(repository):
    for line in (repository / 'requirements.txt').read_text().splitlines():
        if line and not line.startswith('#'):
            assert re.match(r'[\w-]+(\[\w+\])?==[\w.]+(\s+# (kilted|py3\.\d+): [\w.]+)?$', line), (
                line
            )


def test_nothing_tracked_is_large(repository, tracked):
    sizes = {name: (repository / name).stat().st_size for name in tracked}
    assert sizes
    assert not {name: size for name, size in sizes.items() if size > LARGEST_BYTES}


def test_nothing_lies_about_at_the_top(tracked):
    assert {name.partition('/')[0] for name in tracked} == TOP_LEVEL

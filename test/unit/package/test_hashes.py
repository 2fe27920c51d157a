# SPDX-License-Identifier: Apache-2.0
"""pip takes the pins, the files that PyPI has of them, and nothing else."""

from __future__ import annotations

import hashlib
from importlib import metadata
import io
import re
import sys
import tarfile
import zipfile

from packaging.requirements import Requirement
import pytest
from support.paths import REPOSITORY

REQUIREMENTS = (REPOSITORY / 'requirements.txt').read_text()
# it asks for another setuptools than colcon can build with
NOT_ASKED = ('torch',)


@pytest.fixture
def modules(monkeypatch):
    """The modules of .ci, which are no package."""
    monkeypatch.syspath_prepend(str(REPOSITORY / '.ci'))
    import hashes
    import pins
    import workspace

    yield hashes, pins, workspace
    for name in ('hashes', 'machine', 'pins', 'workspace'):
        del sys.modules[name]


# what the file has


def test_each_pin_has_hashes_and_nothing_else_has(modules):
    hashes, pins, _ = modules
    lines = [line.split() for line in pins.HASHES.read_text().splitlines()]
    assert [pin for pin, *_ in lines] == hashes.all_pins(REQUIREMENTS)
    for pin, *known in lines:
        assert known and all(re.fullmatch('[0-9a-f]{64}', each) for each in known), pin


@pytest.mark.parametrize(
    ('name', 'is_taken'),
    [
        ('a_b-1.0-py3-none-any.whl', True),
        ('a_b-1.0-py2.py3-none-any.whl', True),
        ('a_b-1.0-py312-none-any.whl', True),
        ('a_b-1.0-cp313-cp313-manylinux_2_28_x86_64.whl', True),
        ('a_b-1.0-cp311-cp311-manylinux2014_aarch64.manylinux_2_17_aarch64.whl', True),
        ('a_b-1.0-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl', True),
        ('a_b-1.0.1-py3-none-any.whl', False),
        ('a_b-1.0-cp39-cp39-manylinux_2_28_x86_64.whl', False),
        ('a_b-1.0-cp39-none-any.whl', False),
        ('a_b-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl', False),
        ('a_b-1.0-cp312-cp312-musllinux_1_2_x86_64.whl', False),
        ('a_b-1.0-cp312-cp312-macosx_11_0_arm64.whl', False),
        ('a_b-1.0-cp312-cp312-win_amd64.whl', False),
        ('a_b-1.0-cp312-cp312-manylinux2014_i686.whl', False),
    ],
)
def test_files_for_linux_and_a_supported_python_are_taken(modules, name, is_taken):
    hashes, _, _ = modules
    assert hashes.chosen('1.0', listed(name)) == [name] * is_taken


def test_the_source_is_taken_where_no_wheel_is(modules):
    hashes, _, _ = modules
    source, other = 'a-b-1.0.tar.gz', 'a_b-1.0-cp312-cp312-win_amd64.whl'
    assert hashes.chosen('1.0', listed(source, other, 'a-b-11.0.tar.gz')) == [source]
    assert hashes.chosen('1.0', listed(other)) == []
    wheel = 'a_b-1.0-py3-none-any.whl'
    assert hashes.chosen('1.0', listed(source, wheel)) == [wheel]


def listed(*names: str) -> list[dict]:
    """Return files as an index lists them, with their names for hashes."""
    return [{'filename': name, 'hashes': {'sha256': name}} for name in names]


@pytest.mark.parametrize('torch', ['none', 'cpu', 'cuda'])
@pytest.mark.parametrize('tests', ['none', 'all'])
def test_what_pins_ask_for_is_pinned_beside_them(modules, torch, tests):
    """pip installs no more than what is pinned, so nothing else says what was forgotten."""
    _, pins, workspace = modules
    made = workspace.Workspace(sourced='', distro='jazzy', torch=torch, tests=tests)
    sections = pins.read(REQUIREMENTS, 'jazzy')
    names = {name: set(map(name_of, sections[name])) for name in ('build', *made.sections)}
    there = set().union(*names.values())
    # of LeRobot there is what its policies import
    asking = there - names.get('lerobot', set()) - {*NOT_ASKED}
    missing = {
        f'{name}: {wanted}'
        for name in asking
        for wanted in asked_by(name)
        if name_of(wanted.name) not in there
        or not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    }
    assert not missing


def asked_by(name: str) -> list[Requirement]:
    """Return what an installed package asks for; nothing where it is not installed."""
    try:
        wanted = map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        return []
    return [each for each in wanted if not each.marker or each.marker.evaluate({'extra': ''})]


def name_of(pin: str) -> str:
    return re.sub(r'[-_.]+', '-', re.split(r'[=\[]', pin)[0].lower())


# what pip takes


@pytest.fixture
def install(modules, monkeypatch, tmp_path):
    """Installs the pin `tiny==1.0` with what the file of hashes has; returns whether."""
    _, pins, workspace = modules
    made = workspace.Workspace(sourced='', distro='jazzy', torch='none')
    made.folder, made.venv = tmp_path, tmp_path / 'none'
    monkeypatch.setattr(workspace, 'ROOT', tmp_path)
    monkeypatch.setattr(made, 'bin', lambda name: sys.executable)
    monkeypatch.setattr(pins, 'HASHES', tmp_path / 'hashes.txt')
    variables = {'CONFIG_FILE': '/dev/null', 'NO_INDEX': '1', 'NO_CACHE_DIR': '1'}
    variables |= {'FIND_LINKS': str(tmp_path), 'TARGET': str(tmp_path / 'target')}
    for name, value in variables.items():
        monkeypatch.setenv(f'PIP_{name}', value)

    def run(known: str) -> bool:
        (tmp_path / 'hashes.txt').write_text(known)
        made.pip('tiny', ['tiny[extra]==1.0'])
        return (tmp_path / 'target' / 'tiny.py').exists()

    return run


@pytest.fixture
def wheel(tmp_path) -> str:
    """A wheel that asks for a package that is nowhere; returns its SHA-256."""
    file, info = tmp_path / 'tiny-1.0-py3-none-any.whl', 'tiny-1.0.dist-info'
    with zipfile.ZipFile(file, 'w') as archive:
        archive.writestr('tiny.py', '')
        about = 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: nowhere\n'
        archive.writestr(f'{info}/METADATA', about)
        archive.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nTag: py3-none-any\n')
        archive.writestr(f'{info}/RECORD', '')
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_file_whose_hash_is_known_is_installed_alone(install, wheel):
    assert install(f'tiny==1.0 {"0" * 64} {wheel}')


def test_another_file_is_refused_and_named(install, wheel, modules, tmp_path):
    _, _, workspace = modules
    with pytest.raises(workspace.Problem) as refused:
        install(f'tiny==1.0 {"0" * 64}')
    said = str(refused.value)
    assert 'none-any.whl has no hash that .ci/hashes.txt has of tiny[extra]==1.0: ' in said
    assert 'HASHES=none' in said and '\n' not in said
    assert not (tmp_path / 'target').exists()


def test_a_pin_that_was_not_written_is_refused_and_named(install, wheel, modules):
    _, _, workspace = modules
    with pytest.raises(
        workspace.Problem, match=r'lacks tiny\[extra\]==1\.0; python3 \.ci/hashes\.py rewrites it'
    ):
        install(f'other==1.0 {wheel}')


def test_hashes_are_left_out_by_name_into_a_folder_of_its_own(
    install, wheel, modules, monkeypatch
):
    _, _, workspace = modules
    monkeypatch.setenv('HASHES', 'none')
    assert install(f'tiny==1.0 {"0" * 64}')
    made = workspace.Workspace(sourced='', distro='jazzy', torch='none')
    assert made.folder.name.endswith('-torch-none-no-hashes')


def test_a_source_is_built_without_what_no_hash_holds(install, tmp_path):
    """pip would fetch the tools of a build unchecked: here it has no index to fetch from."""
    setup = b'from setuptools import setup; setup(name="tiny", version="1.0", py_modules=["tiny"])'
    file = tmp_path / 'tiny-1.0.tar.gz'
    with tarfile.open(file, 'w:gz') as archive:
        for name, content in {'setup.py': setup, 'tiny.py': b''}.items():
            entry = tarfile.TarInfo(f'tiny-1.0/{name}')
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    assert install(f'tiny==1.0 {hashlib.sha256(file.read_bytes()).hexdigest()}')

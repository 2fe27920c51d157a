# SPDX-License-Identifier: Apache-2.0
"""pip takes the pins, with the files that PyPI has of them; remedies and pages name these pins."""

from __future__ import annotations

import hashlib
from importlib import metadata
import importlib.util
import io
from itertools import chain
import re
import sys
import tarfile
import zipfile

from packaging.requirements import Requirement
import pytest
from support.paths import REPOSITORY

from lerobot_serve import requirements
from lerobot_serve.gateway.door_parameters import DOORS
from lerobot_serve.policies.lerobot import hub_download
from lerobot_serve.policies.registry import _install_command
from lerobot_serve.requirements import FROM_ROS

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

# SPDX-License-Identifier: Apache-2.0
"""`pip install .` into an environment of its own, without ROS: its commands, and a real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import venv

import pytest
from support.paths import REPOSITORY

pytestmark = pytest.mark.slow

INSTALL_LIMIT_S, RUN_LIMIT_S = 150.0, 60.0
SHAPE = 'joints=6,chunk=30,cameras=front:48x64,fps=30'
CODE = """
import json, sys
import numpy
from lerobot_serve.client import PolicyClient
images = {'observation.images.front': numpy.zeros((48, 64, 3), numpy.uint8)}
with PolicyClient.connect('policy_server', endpoints=sys.argv[1], timeout_s=20) as client:
    with client.open(task='reach') as session:
        chunk = session.predict(numpy.zeros(6), images)
modules = {name.split('.')[0] for name in sys.modules}
print(json.dumps({
    'shape': chunk.actions.shape,
    'file': sys.modules['lerobot_serve'].__file__,
    'ros': sorted(modules & {'rclpy', 'lerobot_serve_interfaces', 'torch', 'cv2', 'yaml'}),
}))
"""


@pytest.fixture
def link() -> str:
    """The server listens on Zenoh."""
    return 'zenoh'


def alone() -> dict[str, str]:
    """Return an environment in which nothing of this one is found."""
    hidden = re.compile(r'PYTHON|AMENT|ROS_|RMW_|COLCON|CMAKE|LD_LIBRARY_PATH|VIRTUAL_ENV')
    return {name: value for name, value in os.environ.items() if not hidden.match(name)}


def pip(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Install with the pip of this environment: ensurepip would take as long as the rest."""
    pip = [sys.executable, '-m', 'pip', '--python', python, 'install', '--no-compile']
    return subprocess.run(
        [*pip, '--quiet', '--retries', '0', *words],
        capture_output=True,
        text=True,
        timeout=INSTALL_LIMIT_S,
        env=alone(),
        check=False,
    )


def requirements() -> list[str]:
    """Return what setup.py requires."""
    (listed,) = re.findall(r'install_requires=\[([^\]]*)\]', (REPOSITORY / 'setup.py').read_text())
    return re.findall(r"'([^']+)'", listed)


@pytest.fixture
def python(tmp_path) -> Path:
    """The Python of an environment with the client alone."""
    try:
        venv.create(tmp_path / 'venv', with_pip=False)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f'no virtual environment can be made here: {error}')
    found = tmp_path / 'venv' / 'bin' / 'python'
    needs = pip(found, 'setuptools>=70', *requirements())
    if needs.returncode:
        pytest.skip(f'pip reaches no package index: {needs.stderr.strip().splitlines()[-1]}')
    # pip builds in the folder that it installs
    source = tmp_path / 'source'
    for name in ('lerobot_serve', 'launch', 'config', 'resource'):
        shutil.copytree(
            REPOSITORY / name, source / name, ignore=shutil.ignore_patterns('__pycache__')
        )
    for name in ('setup.py', 'setup.cfg', 'package.xml'):
        shutil.copy(REPOSITORY / name, source)
    made = pip(found, '--no-build-isolation', '--no-index', str(source))
    assert made.returncode == 0, made.stderr
    return found


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        env=alone(),
        cwd=command[0].parent,
        check=False,
    )


def test_it_is_installed_alone_and_predicts(rig, python):
    own = {
        file.name for file in python.parent.iterdir() if 'lerobot_serve' in file.read_text('l1')
    }
    assert own == {'lerobot-serve'}
    for verb, remedy in (('robots', '`make shell` in a clone'), ('doctor', 'pip install PyYAML')):
        ran = run(python.parent / 'lerobot-serve', verb)
        assert ran.returncode == 1
        assert remedy in ran.stderr
    rig.start(policy_kind='null', policy_path=SHAPE)
    endpoint = rig.fleet.links.endpoint('/policy_server')
    ran = run(python, '-c', CODE, endpoint)
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(ran.stdout)
    assert shown['shape'] == [30, 6]
    assert 'venv' in Path(shown['file']).parts
    assert shown['ros'] == []
    assert sys.executable != str(python)

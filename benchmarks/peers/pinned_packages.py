# SPDX-License-Identifier: Apache-2.0
"""
The packages of peers. A peer is not a requirement of this package: what it needs is pinned in the
section [bench] of requirements.txt, and a benchmark installs it below its folder of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import util
import os
from pathlib import Path
import runpy
import shutil
import subprocess
import sys
from typing import Any

# peer -> its packages in [bench]; LeRobot and protobuf are part of the workspace, and what its
# command line needs beside them is a peer of its own
PACKAGES = {
    'lerobot': ('grpcio',),
    'lerobot_command': ('pyyaml-include', 'toml'),
    'openpi': ('openpi-client', 'msgpack', 'websockets'),
}
# peer -> a package that it needs here already, and how to have it
NEEDED = {
    'lerobot': ('lerobot', 'LeRobot is not installed; it comes with torch (TORCH=cpu)'),
    'floors.iceoryx': ('iceoryx2', 'iceoryx2 is not installed; PYTHONPATH may name its folder'),
}
SOURCES = Path(__file__).resolve().parents[2]
STAMP = 'pins.txt'
INSTALL_S = 300.0


class PeerUnavailable(Exception):
    """A peer that cannot be measured here, and why."""


def pins_of(peer: str, sources: Path = SOURCES) -> list[str]:
    """Return the pins of a peer. Raises PeerUnavailable outside a source tree."""
    try:
        text = (sources / 'requirements.txt').read_text()
        read = reading_pins(sources)['read']
    except OSError as error:
        raise PeerUnavailable(
            f'its versions stand in the source tree, here is none: {error}'
        ) from error
    pins = read(text, os.environ.get('ROS_DISTRO', 'jazzy')).get('bench', [])
    return [pin for pin in pins if pin.partition('==')[0] in PACKAGES.get(peer, ())]


def reading_pins(sources: Path = SOURCES) -> dict[str, Any]:
    """Return the functions of .ci/pins.py, which is not a package. Raises OSError."""
    return runpy.run_path(str(sources / '.ci' / 'pins.py'))


def installed(peer: str, folder: Path) -> Path | None:
    """Return where the packages of a peer lie, None where they do not. Raises PeerUnavailable."""
    package, advice = NEEDED.get(peer, ('', ''))
    if package and not util.find_spec(package):
        raise PeerUnavailable(advice)
    stamp = (folder / peer / STAMP).resolve()
    there = stamp.exists() and stamp.read_text() == content(pins_of(peer))
    return stamp.parent if there else None


def content(pins: Sequence[str]) -> str:
    """Return what is installed, in one text: compiled packages fit one Python."""
    python = f'python {sys.version_info.major}.{sys.version_info.minor}'
    return '\n'.join([*pins, python, f'hashed {reading_pins()["are_hashed"]()}\n'])


def install(peer: str, folder: Path) -> Path:
    """Return where the packages of a peer lie, after installing them. Raises PeerUnavailable."""
    there = installed(peer, folder)
    if there:
        return there
    pins, target = pins_of(peer), (folder / peer).resolve()
    shutil.rmtree(target, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    if pins:
        run_pip(pins, target, folder / f'{peer}.txt')
    target.mkdir(exist_ok=True)
    (target / STAMP).write_text(content(pins))
    return target


def run_pip(pins: Sequence[str], target: Path, listed: Path) -> None:
    """Install these pins and nothing else into a folder. Raises PeerUnavailable."""
    # not what they ask for in turn: openpi-client asks for an older numpy
    arguments = reading_pins()['arguments'](pins, listed)
    options = ['--quiet', '--no-input', '--disable-pip-version-check', '--target', str(target)]
    command = [sys.executable, '-m', 'pip', 'install', *options, *arguments]
    print(f'  installing {", ".join(pins)} into {target}', flush=True)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f'pip took longer than {INSTALL_S:g} s') from error
    if result.returncode:
        said = result.stderr.strip().splitlines() or ['no reason given']
        raise PeerUnavailable(f'pip could not install {" ".join(pins)}: {said[-1]}')

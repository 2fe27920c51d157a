# SPDX-License-Identifier: Apache-2.0
"""What this machine offers and lacks, found out before anything is installed."""

from __future__ import annotations

import os
from pathlib import Path
import platform
import shutil
import subprocess
import sys

PYTHONS = ((3, 11), (3, 13))
# by the torch build: what is installed, and what pip unpacks and keeps meanwhile
FREE_DISK_GB = {'none': 2, 'cpu': 4, 'cuda': 12}


class Problem(Exception):
    """Something that the user can mend; the text says what and how."""


def run(command: list[object]) -> str:
    """Return what a command prints. Raises CalledProcessError."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def sourced_distro() -> str:
    """Return the ROS 2 that is sourced in this shell, '' when none is. Raises Problem."""
    distro = os.environ.get('ROS_DISTRO', '')
    # inside `make shell` our own wheels look like a sourced ROS 2
    if (
        not distro
        or not os.environ.get('AMENT_PREFIX_PATH')
        or 'LEROBOT_SERVE_SHELL' in os.environ
    ):
        return ''
    if subprocess.run([sys.executable, '-c', 'import rclpy'], capture_output=True).returncode:
        raise Problem(
            f'ROS 2 {distro} is sourced, but {sys.executable} cannot import rclpy; use the '
            'Python of that ROS 2 (make PYTHON=/usr/bin/python3), or a shell without it'
        )
    return distro


def supported_python() -> Path:
    """Return this Python or the first supported one on the PATH. Raises Problem."""
    low, high = PYTHONS
    names = [sys.executable, 'python3.11', 'python3.12', 'python3.13']
    for name in filter(None, map(shutil.which, names)):
        probe = subprocess.run(
            [name, '-c', 'import sys; print(*sys.version_info[:2], sys.executable)'],
            capture_output=True,
            text=True,
        )
        if probe.returncode == 0:
            major, minor, path = probe.stdout.split(maxsplit=2)
            if low <= (int(major), int(minor)) <= high:
                return Path(path.strip())
    raise Problem(
        f'Python 3.{low[1]} to 3.{high[1]} is needed and python3 is {platform.python_version()}; '
        'install one of them, or name it: make PYTHON=/path/to/python3.11'
    )


def check_architecture(distro: str) -> None:
    """Raise Problem where there are no ROS 2 wheels."""
    if (platform.system(), platform.machine()) != ('Linux', 'x86_64'):
        raise Problem(
            f'ROS 2 wheels exist for Linux on x86_64, this is {platform.system()} on '
            f'{platform.machine()}; install ROS 2 {distro} and source its setup.bash'
        )


def check_build_tools(python: Path, version: str) -> None:
    """Raise Problem when nothing can be compiled here."""
    compiler = os.environ.get('CXX', 'c++')
    if not shutil.which(compiler.split()[0]):
        raise Problem(
            f'there is no C++ compiler ({compiler}); on Debian or Ubuntu: apt install g++'
        )
    headers = run([python, '-c', 'import sysconfig; print(sysconfig.get_paths()["include"])'])
    if not (Path(headers) / 'Python.h').exists():
        raise Problem(
            f'{headers}/Python.h is missing; on Debian or Ubuntu: apt install python{version}-dev'
        )


def check_disk(folder: Path, torch: str) -> None:
    """Raise Problem when what is installed would not fit."""
    free_gb, needed_gb = shutil.disk_usage(folder).free / 1e9, FREE_DISK_GB[torch]
    if free_gb < needed_gb:
        raise Problem(
            f'{folder} has {free_gb:.1f} GB free and {needed_gb} GB are needed; make room'
        )

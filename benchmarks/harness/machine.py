# SPDX-License-Identifier: Apache-2.0
"""What a measurement was taken on. Imports neither rclpy nor torch; any thread."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib import metadata
import os
from pathlib import Path
import platform
import re
import subprocess

from lerobot_serve import __version__

GIT_TIMEOUT_S = 5.0


def facts(middleware: str) -> dict[str, object]:
    """Return the machine, its load at this moment, and the versions; `middleware` is the RMW."""
    return {
        'started': datetime.now(timezone.utc).isoformat(timespec='seconds'),
        'cpu': cpu_model(read('/proc/cpuinfo')),
        'cores': len(os.sched_getaffinity(0)),
        'memory_gib': memory_gib(read('/proc/meminfo')),
        'kernel': platform.release(),
        'load_average': [round(load, 2) for load in os.getloadavg()],
        'python': platform.python_version(),
        'ros_distro': os.environ.get('ROS_DISTRO', 'unknown'),
        'middleware': middleware,
        **{name: version(name) for name in ('rclpy', 'numpy', 'simplejpeg', 'torch')},
        'lerobot_serve': __version__,
        'git_commit': git_commit(Path(__file__).parent),
    }


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def cpu_model(cpuinfo: str) -> str:
    """Return the name in a /proc/cpuinfo."""
    found = re.search(r'^model name\s*:\s*(.+)$', cpuinfo, re.M)
    return found[1] if found else platform.machine()


def memory_gib(meminfo: str) -> float:
    """Return the total of a /proc/meminfo, 0 when it holds none."""
    found = re.search(r'^MemTotal:\s*(\d+) kB$', meminfo, re.M)
    return round(int(found[1]) / 2**20, 1) if found else 0.0


def version(package: str) -> str:
    """Return the installed version, or 'none'."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return 'none'


def git_commit(folder: Path) -> str:
    """Return the commit checked out around `folder`, or 'none'."""
    try:
        found = subprocess.run(
            ['git', '-C', str(folder), 'rev-parse', '--verify', 'HEAD'],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 'none'
    return found.stdout.strip() if found.returncode == 0 else 'none'


def read(path: str) -> str:
    """Return a file's text, empty where the system has no such file."""
    try:
        return Path(path).read_text()
    except OSError:
        return ''

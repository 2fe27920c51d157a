"""What is looked at of this machine, read once and kept as data. Any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
import os
from pathlib import Path
import platform
import resource

from lerobot_serve.start import FROM_ROS, REQUIREMENTS

SHARED_MEMORY = '/dev/shm'
NETWORK = Path('/proc/sys/net/core')
PROFILE_VARIABLES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')


@dataclass(frozen=True, slots=True)
class Space:
    """Room in a file system, and whether this user may write there."""

    free_bytes: int
    total_bytes: int
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """None stands for what the system does not tell."""

    variables: Mapping[str, str] = field(default_factory=dict)
    python: str = ''
    shared_memory: Space | None = None
    receive_buffer_bytes: int | None = None
    send_buffer_bytes: int | None = None
    open_files: int | None = None
    open_files_allowed: int | None = None
    missing: frozenset[str] = frozenset()
    # names of profile files that are not there
    missing_profiles: frozenset[str] = frozenset()


def look() -> Machine:
    """Return how it is now; call it before ROS starts, which sets variables."""
    variables = dict(os.environ)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    profiles = {variables[name] for name in PROFILE_VARIABLES if variables.get(name)}
    return Machine(
        variables,
        platform.python_version(),
        space(SHARED_MEMORY),
        number(NETWORK / 'rmem_max'),
        number(NETWORK / 'wmem_max'),
        None if soft == resource.RLIM_INFINITY else soft,
        None if hard == resource.RLIM_INFINITY else hard,
        frozenset(missing((*FROM_ROS, *REQUIREMENTS))),
        frozenset(name for name in profiles if not os.access(name, os.R_OK)),
    )


def space(path: str) -> Space | None:
    """Return the room of a folder's file system, None when there is no such folder."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return Space(
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        os.access(path, os.W_OK | os.X_OK),
    )


def number(file: Path) -> int | None:
    """Return the number that a file of the kernel holds."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def missing(packages: Iterable[str]) -> list[str]:
    """Return those that cannot be imported; none is."""
    return [name for name in packages if not _is_there(name)]


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False

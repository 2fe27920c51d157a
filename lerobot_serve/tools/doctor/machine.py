# SPDX-License-Identifier: Apache-2.0
"""Reads the facts about this machine that the checks use. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
import os
from pathlib import Path
import platform
import resource

from lerobot_serve.requirements import FROM_ROS, missing_packages, REQUIREMENTS
from lerobot_serve.shared_memory.ports import deaf_processes

SHARED_MEMORY = '/dev/shm'
NETWORK = Path('/proc/sys/net/core')
PROFILE_VARIABLES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')


@dataclass(frozen=True, slots=True)
class FileSystemSpace:
    """Space of a file system, and whether this user may write there."""

    free_bytes: int
    total_bytes: int
    writable: bool = True


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about this machine; None: unknown."""

    variables: Mapping[str, str] = field(default_factory=dict)
    python: str = ''
    shared_memory: FileSystemSpace | None = None
    receive_buffer_bytes: int | None = None
    send_buffer_bytes: int | None = None
    open_files: int | None = None
    open_files_allowed: int | None = None
    missing: frozenset[str] = frozenset()
    # names of profile files that cannot be read
    missing_profiles: frozenset[str] = frozenset()
    # of this user, that hear nothing any more: command lines by number
    deaf: Mapping[int, str] = field(default_factory=dict)


def read_machine() -> MachineFacts:
    """Read the facts; call before ROS starts, because ROS sets variables."""
    variables = dict(os.environ)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    profiles = {variables[name] for name in PROFILE_VARIABLES if variables.get(name)}
    return MachineFacts(
        variables=variables,
        python=platform.python_version(),
        shared_memory=file_system_space(SHARED_MEMORY),
        receive_buffer_bytes=kernel_value(NETWORK / 'rmem_max'),
        send_buffer_bytes=kernel_value(NETWORK / 'wmem_max'),
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        open_files_allowed=None if hard == resource.RLIM_INFINITY else hard,
        missing=frozenset(missing_packages((*FROM_ROS, *REQUIREMENTS))),
        missing_profiles=frozenset(name for name in profiles if not os.access(name, os.R_OK)),
        deaf=deaf_processes(),
    )


def file_system_space(path: str) -> FileSystemSpace | None:
    """Return the space of a folder's file system, None without the folder."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return FileSystemSpace(
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        os.access(path, os.W_OK | os.X_OK),
    )


def kernel_value(file: Path) -> int | None:
    """Return the number in a file of the kernel."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None

# SPDX-License-Identifier: Apache-2.0
"""
Reads the facts about this machine that the checks use, and compares its system clock with the
monotonic clock. Any thread.

Robots do not depend on the system clock: no time stamp crosses a machine. Traces and bags of
several machines are aligned by it.
"""

from __future__ import annotations

from collections.abc import Mapping
import ctypes
from dataclasses import dataclass, field
import os
from pathlib import Path
import platform
import resource
import time

from lerobot_serve.requirements import FROM_ROS, missing_packages, REQUIREMENTS
from lerobot_serve.shared_memory.ports import deaf_processes
from lerobot_serve.tools.doctor.finding import Finding, ok, warning

SHARED_MEMORY = '/dev/shm'
NETWORK = Path('/proc/sys/net/core')
PROFILE_VARIABLES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')
READINGS = 5
# tolerated step, and slew while the command runs
STEP_S, SLEW = 0.02, 0.001
# result of adjtimex(2): clock not synchronised
TIME_ERROR = 5
TIMEX_BYTES = 512


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


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks at one instant; `synchronised` is None if unknown."""

    wall_ns: int
    monotonic_ns: int
    synchronised: bool | None = None


def read_clocks() -> ClockReading:
    """Return the reading with the shortest delay of several readings of both clocks."""
    best_ns, wall_ns, monotonic_ns = 1 << 63, 0, 0
    for _ in range(READINGS):
        begin_ns, now_ns, end_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if end_ns - begin_ns < best_ns:
            best_ns, wall_ns, monotonic_ns = end_ns - begin_ns, now_ns, begin_ns
    return ClockReading(wall_ns, monotonic_ns, is_synchronised())


def is_synchronised() -> bool | None:
    """Return whether the kernel reports the clock as synchronised."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


def check_clocks(before: ClockReading, after: ClockReading) -> list[Finding]:
    return [_steps(before, after), _synchronisation(after)]


def _steps(before: ClockReading, after: ClockReading) -> Finding:
    passed_s = (after.monotonic_ns - before.monotonic_ns) / 1e9
    step_s = (after.wall_ns - before.wall_ns) / 1e9 - passed_s
    if abs(step_s) <= STEP_S + SLEW * passed_s:
        return ok('clock', f'no jump in the {passed_s:.1f} s of this command')
    return warning(
        'clock',
        f'the clock jumped by {step_s:+.3f} s in the {passed_s:.1f} s of this command; times of '
        'traces and bags jump with it',
        'let only one service set the clock, and slew it: chrony without makestep after '
        'the start; see `timedatectl` and `chronyc tracking`',
    )


def _synchronisation(now: ClockReading) -> Finding:
    name = 'clock synchronised'
    if now.synchronised:
        return ok(name, 'the kernel reports the clock as synchronised')
    if now.synchronised is None:
        return ok(name, 'not available from the kernel; robots do not depend on it')
    return warning(
        name,
        'clock not synchronised: traces and bags of several machines cannot be aligned (robots do '
        'not depend on it)',
        'start a time service on every machine: sudo timedatectl set-ntp true, or install chrony; '
        'in a container, on its host',
    )

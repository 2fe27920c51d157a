# SPDX-License-Identifier: Apache-2.0
"""
Read the facts about this machine that the checks use, compare its system clock with the monotonic
clock, and check whether a policy is fast enough for its robot, and for how many robots. Any
thread.

Robots do not depend on the system clock: no time stamp crosses a machine. Traces and bags of
several machines are aligned by it.

Rule of thumb: a forward pass takes less than a fifth of the control period. A policy with chunks
of many rows may take longer, since the robot executes one chunk during the inference of the next;
the limit is half of the duration of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
import ctypes
from dataclasses import dataclass, field
from math import floor
import os
from pathlib import Path
import platform
import resource
import time

from lerobot_serve.requirements import FROM_ROS, missing_packages, REQUIREMENTS
from lerobot_serve.server.sessions.session_validation import Demand, expected_rate_hz, max_robots
from lerobot_serve.shared_memory.ports import deaf_processes
from lerobot_serve.tools.doctor.finding import failure, Finding, ok, skipped, warning

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


PERIOD_SHARE_LIMIT = 0.2
CHUNK_SHARE_LIMIT = 0.5
# utilisation above which the queue wait grows faster than the load
UTILISATION = 0.7
FASTER = (
    'run it on a GPU (--device cuda:0), use fewer denoising steps or a smaller network, or stop '
    'other computations on this machine'
)
NO_RATE = (
    'the control rate is unknown: give --robot FILE, or --parameter trained_fps=N with the fps '
    'of the data set'
)


@dataclass(frozen=True, slots=True)
class PolicySpeed:
    """Times of forward passes, control rate and chunk size; 0 Hz means unknown."""

    p50_ms: float
    p99_ms: float
    runs: int
    fps: float
    chunk_size: int

    @property
    def period_ms(self) -> float:
        return 1e3 / self.fps

    @property
    def chunk_ms(self) -> float:
        return self.chunk_size * self.period_ms


def check_forward_time(pace: PolicySpeed) -> Finding:
    """Check the time of a forward pass against the control period."""
    name = 'time of a forward pass'
    measured = f'p50 {pace.p50_ms:.1f} ms, p99 {pace.p99_ms:.1f} ms of {pace.runs}'
    if not pace.fps > 0:
        return skipped(name, f'{measured}; {NO_RATE}')
    share = pace.p99_ms / pace.period_ms
    found = (
        f'{measured}; p99 is {share_text(share)} the control period of {pace.period_ms:.1f} ms '
        f'at {pace.fps:g} Hz (recommended: below {100 * PERIOD_SHARE_LIMIT:g} %)'
    )
    if share <= PERIOD_SHARE_LIMIT:
        return ok(name, found)
    if pace.chunk_size == 1:
        return failure(name, f'{found}; a chunk has one row, which inference delays', FASTER)
    if pace.p99_ms > CHUNK_SHARE_LIMIT * pace.chunk_ms:
        return failure(
            name,
            f'{found}, and more than half of the {pace.chunk_ms:.0f} ms of a chunk: the robot '
            'will stall',
            FASTER,
        )
    return warning(
        name,
        f'{found}; a chunk lasts {pace.chunk_ms:.0f} ms, longer than the inference',
        f'keep request_threshold_s of the edge above {pace.p99_ms / 1e3:.2f} s plus the network, '
        f'or: {FASTER}',
    )


def share_text(share: float) -> str:
    """Return a share of the period in percent, from 200 % on as a multiple."""
    return f'{share:.0f}x' if share >= 2 else f'{share:.0%} of'


def check_capacity(pace: PolicySpeed, *, exclusive: bool, network_s: float) -> Finding:
    """Compute how many robots one server of this policy on this machine can serve."""
    name = 'robots for one server'
    if not pace.fps > 0:
        return skipped(name, NO_RATE)
    chunk_s, service_s = pace.chunk_ms / 1e3, max(pace.p50_ms, 1e-3) / 1e3
    count = floor(UTILISATION * chunk_s / service_s)
    if count < 1:
        return failure(
            name,
            f'none: a chunk lasts {chunk_s:.2f} s and takes {service_s:.2f} s of inference',
            FASTER,
        )
    if exclusive:
        return ok(name, 'one: the policy serves one session at a time')
    admitted = max_robots(service_s, Demand(expected_rate_hz(chunk_s), chunk_s, network_s))
    return ok(
        name,
        f'about {count}: one request per robot and {chunk_s:.2f} s, {pace.p50_ms:.1f} ms each, '
        f'at {UTILISATION:.0%} utilisation; with admission: auto a server without measurements '
        f'admits {admitted}',
    )

# SPDX-License-Identifier: Apache-2.0
"""
Compares the system clock with the monotonic clock. Any thread.

Robots do not depend on the system clock: no time stamp crosses a machine. Traces and bags of
several machines are aligned by it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
import time

from lerobot_serve.tools.doctor.finding import Finding, ok, warning

READINGS = 5
# tolerated step, and slew while the command runs
STEP_S, SLEW = 0.02, 0.001
# result of adjtimex(2): clock not synchronised
TIME_ERROR = 5
TIMEX_BYTES = 512


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

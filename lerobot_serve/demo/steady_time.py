# SPDX-License-Identifier: Apache-2.0
"""Wall clock in seconds since 1970 at the start of the process, advanced by the steady clock."""

from __future__ import annotations

import os
from pathlib import Path
import time

BEGIN_S = time.time() - time.monotonic()
# of /proc/PID/stat, counted behind the name in parentheses
START_FIELD = 19


def now_s() -> float:
    """Return the current time for reports; steps of the system clock do not affect it."""
    return BEGIN_S + time.monotonic()


def since_process_start_s(time_s: float) -> float:
    """Return the time from the start of this process, before its first import, to `time_s`."""
    fields = Path('/proc/self/stat').read_text().rpartition(')')[2].split()
    started_s = int(fields[START_FIELD]) / os.sysconf('SC_CLK_TCK')
    # both clocks of the kernel count from its start, this one without time in suspend
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    return time_s - (now_s() - age_s)

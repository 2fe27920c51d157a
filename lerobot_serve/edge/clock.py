# SPDX-License-Identifier: Apache-2.0
"""
The clock of the edge controller: the time since the machine was booted, which nothing sets.

CLOCK_MONOTONIC stands still while the machine is suspended. A robot can be moved meanwhile, and
inputs, actions and the last command would come out of the suspension as new as they went in.
CLOCK_BOOTTIME counts that time; where the machine was never suspended the two are equal. Any
thread.
"""

from __future__ import annotations

import time


def now_ns() -> int:
    """Return the time since the machine was booted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

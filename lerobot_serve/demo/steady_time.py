# SPDX-License-Identifier: Apache-2.0
"""Seconds since 1970 as they were at the start, and steady from then on."""

from __future__ import annotations

import time

BEGIN_S = time.time() - time.monotonic()


def now_s() -> float:
    """Return the time of now, for reports; a step of the system clock does not move it."""
    return BEGIN_S + time.monotonic()

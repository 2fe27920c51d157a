# SPDX-License-Identifier: Apache-2.0
"""Wall clock in seconds since 1970 at the start of the process, advanced by the steady clock."""

from __future__ import annotations

import time

BEGIN_S = time.time() - time.monotonic()


def now_s() -> float:
    """Return the current time for reports; steps of the system clock do not affect it."""
    return BEGIN_S + time.monotonic()

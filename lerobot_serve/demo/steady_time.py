# SPDX-License-Identifier: Apache-2.0
"""Wall clock in seconds since 1970 at the start of the demo, advanced by the steady clock."""

from __future__ import annotations

import time

# of the demo; the process may be older: `make` installs in it first
START_S = time.time()
BEGIN_S = START_S - time.monotonic()


def now_s() -> float:
    """Return the current time for reports; steps of the system clock do not affect it."""
    return BEGIN_S + time.monotonic()

# SPDX-License-Identifier: Apache-2.0
"""The memory of this process. Any thread."""

from __future__ import annotations

import os
from pathlib import Path

STATM = Path('/proc/self/statm')
MEGABYTE = 1e6


def resident_memory_mb(statm: Path = STATM) -> float:
    """Return the resident memory of this process [MB]; 0 where the system does not say."""
    try:
        pages = int(statm.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf('SC_PAGE_SIZE') / MEGABYTE

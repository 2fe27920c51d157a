# SPDX-License-Identifier: Apache-2.0
"""
Keep freed memory in the process instead of returning it to the system.

An image message is allocated and freed for every request. By default glibc returns blocks of that
size at once, and the next request takes a page fault for each 4 KiB: 110 to 240 faults a request
with two 480x640 JPEG cameras, none with these settings.
"""

from __future__ import annotations

import ctypes

# from glibc's malloc.h; both are needed: a single one has no effect
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGE_BLOCK_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> bool:
    """Apply the settings; return whether the allocator supports them. Main thread, at start."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGE_BLOCK_BYTES)) and bool(
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    )

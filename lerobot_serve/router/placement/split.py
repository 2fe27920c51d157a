# SPDX-License-Identifier: Apache-2.0
"""
Map an episode to a slot, with the same result on every machine and Python version.

The bucket is the first eight bytes of the SHA-256 of the key's UTF-8, read big-endian, modulo 100.
An episode goes to slot a when its bucket is below the split. Pure functions.
"""

from __future__ import annotations

import hashlib

from lerobot_serve.contract.limits import SINGLE_SLOT

BUCKETS = 100


def bucket(key: str) -> int:
    """Return the bucket of a key, 0 to 99. Raises UnicodeEncodeError."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], 'big') % BUCKETS


def slot(key_bucket: int, split_percent: int | None) -> str:
    """Return the slot of a bucket: 'a' below the split, else 'b'; 'prod' without a split."""
    if split_percent is None:
        return SINGLE_SLOT
    return 'a' if key_bucket < split_percent else 'b'

# SPDX-License-Identifier: Apache-2.0
"""
Select the requests that are copied to the shadow and those with a second draw.

The selection hashes the request key, so that a replay selects the same requests. A copy may hold
the prefix of the live policy; a server ignores the prefix of another policy. Pure functions; any
thread.
"""

from __future__ import annotations

from hashlib import blake2b

from lerobot_serve.router.shadow.sample_joiner import RequestKey


def is_shadowed(key: RequestKey, percent: float) -> bool:
    """Return whether a request is copied to the shadow."""
    return _share_percent('shadow', key) < percent


def is_drawn_twice(key: RequestKey, percent: float) -> bool:
    """Return whether a shadowed request gets a second draw."""
    return _share_percent('spread', key) < percent


def _share_percent(purpose: str, key: RequestKey) -> float:
    """Return a hash in [0, 100) of purpose and request."""
    text = f'{purpose}/{key.session_epoch}/{key.seq}/{key.client_id}'
    digest = blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=6).digest()
    return 100 * int.from_bytes(digest, 'big') / 2**48

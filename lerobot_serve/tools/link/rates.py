# SPDX-License-Identifier: Apache-2.0
"""Count messages and bytes of each key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
import threading

BYTES_PER_KB = 1000.0


@dataclass(frozen=True, slots=True, order=True)
class KeyCount:
    """What one key has carried."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeyRate:
    """What one key carries."""

    key: str
    messages_per_s: float
    kb_per_s: float


class KeyCounter:
    """Threads of Zenoh count, the caller reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, KeyCount] = {}

    def count(self, key: str, payload: bytes) -> None:
        """Count one message."""
        with self._lock:
            before = self._counts.get(key, KeyCount())
            self._counts[key] = KeyCount(before.messages + 1, before.size_bytes + len(payload))

    def counts(self) -> dict[str, KeyCount]:
        """Return what each key has carried so far."""
        with self._lock:
            return dict(self._counts)


def key_rates(counters: Iterable[Mapping[str, KeyCount]], duration_s: float) -> list[KeyRate]:
    """
    Return the rates, sorted by key. A message may pass several endpoints; each is counted there,
    so the endpoint that has seen most of a key counts.
    """
    most: dict[str, KeyCount] = {}
    for counts in counters:
        for key, count in counts.items():
            most[key] = max(count, most.get(key, KeyCount()))
    return [
        KeyRate(key, count.messages / duration_s, count.size_bytes / BYTES_PER_KB / duration_s)
        for key, count in sorted(most.items())
    ]

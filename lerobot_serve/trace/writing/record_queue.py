# SPDX-License-Identifier: Apache-2.0
"""Queue records for the writer thread and count lost ones. Any thread."""

from __future__ import annotations

from collections import Counter, deque
import threading
from typing import Any

from lerobot_serve.trace.format.records import RequestRecord, TraceRecord

RECORDS_LIMIT = 8192
QUEUED_IMAGE_BYTES_LIMIT = 64 << 20

UNKNOWN = 'unknown'


class RecordQueue:
    """
    A bounded queue of records without a lock on the queue, so that no thread waits for another.

    The total size of records with images is bounded as well.
    """

    def __init__(self, limit: int = RECORDS_LIMIT) -> None:
        self._limit = limit
        self._records: deque[TraceRecord] = deque()
        self._image_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: TraceRecord) -> bool:
        """Queue a record; return False when full. Concurrent calls may exceed the limit."""
        if len(self._records) >= self._limit:
            return False
        size = image_bytes(record)
        if size and not self._reserve(size):
            return False
        self._records.append(record)
        return True

    def take(self) -> TraceRecord:
        """Remove and return the oldest record. Raises IndexError."""
        record = self._records.popleft()
        size = image_bytes(record)
        if size:
            self._reserve(-size)
        return record

    def _reserve(self, size: int) -> bool:
        with self._lock:
            if self._image_bytes + size > QUEUED_IMAGE_BYTES_LIMIT:
                return False
            self._image_bytes += size
            return True


class LossCounter:
    """Counts lost records by reason and kind: in total, and not yet reported in the trace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total: Counter[str] = Counter()
        self._unreported: Counter[tuple[str, str]] = Counter()

    def add(self, reason: str, kind: str) -> None:
        with self._lock:
            self._total[reason] += 1
            self._unreported[reason, kind] += 1

    def unreported(self) -> list[tuple[str, str, int]]:
        """Return reason, kind and count of the losses without a `drop` record."""
        with self._lock:
            return [(*key, count) for key, count in self._unreported.items()]

    def mark_reported(self, reason: str, kind: str, count: int) -> None:
        """Subtract losses that a `drop` record now reports."""
        with self._lock:
            self._unreported[reason, kind] -= count
            self._unreported += Counter()

    def total(self) -> dict[str, int]:
        """Return all losses by reason."""
        with self._lock:
            return dict(self._total)


def image_bytes(record: TraceRecord) -> int:
    """Return the approximate memory of the images of a queued record."""
    if not isinstance(record, RequestRecord):
        return 0
    if record.later:
        return record.later.bytes
    return sum(len(image.get('base64', '')) for image in record.images or ())


def record_kind(record: Any) -> str:
    """Return the kind of a queued record."""
    return record.kind if isinstance(record, TraceRecord) else UNKNOWN

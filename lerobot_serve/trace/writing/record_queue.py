"""What was deposited and not yet written, and what was lost. Any thread."""

from __future__ import annotations

from collections import Counter, deque
import threading
from typing import Any

from lerobot_serve.trace.format.deferred_fields import DEFERRED, DeferredFields

RECORDS_LIMIT = 8192
QUEUED_IMAGE_BYTES_LIMIT = 64 << 20

UNKNOWN = 'unknown'


class RecordQueue:
    """
    A bounded line of records, without a lock, so that no thread ever waits for another one.

    Of the records with pictures, which may be large, the bytes are bounded too.
    """

    def __init__(self, limit: int = RECORDS_LIMIT) -> None:
        self._limit = limit
        self._records: deque[dict[str, Any]] = deque()
        self._pictures_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: dict[str, Any]) -> bool:
        """Return whether there was room; a thread more or less at once does not matter."""
        if len(self._records) >= self._limit:
            return False
        size = image_bytes(record)
        if size and not self._reserve(size):
            return False
        self._records.append(record)
        return True

    def take(self) -> dict[str, Any]:
        """Return the oldest record. Raises IndexError."""
        record = self._records.popleft()
        size = image_bytes(record)
        if size:
            self._reserve(-size)
        return record

    def _reserve(self, size: int) -> bool:
        with self._lock:
            if self._pictures_bytes + size > QUEUED_IMAGE_BYTES_LIMIT:
                return False
            self._pictures_bytes += size
            return True


class LossCounter:
    """What was lost, by reason and kind of record: in all, and not yet told in the trace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total: Counter[str] = Counter()
        self._untold: Counter[tuple[str, str]] = Counter()

    def add(self, reason: str, kind: str) -> None:
        with self._lock:
            self._total[reason] += 1
            self._untold[reason, kind] += 1

    def untold(self) -> list[tuple[str, str, int]]:
        """Return reason, kind and count of what no `drop` record tells yet."""
        with self._lock:
            return [(*key, count) for key, count in self._untold.items()]

    def told(self, reason: str, kind: str, count: int) -> None:
        """Note that a record tells it now."""
        with self._lock:
            self._untold[reason, kind] -= count
            self._untold += Counter()

    def total(self) -> dict[str, int]:
        """Return everything that was lost, by reason."""
        with self._lock:
            return dict(self._total)


def image_bytes(record: dict[str, Any]) -> int:
    """Return about how much memory the pictures of a record take while it waits."""
    later = record.get(DEFERRED)
    if isinstance(later, DeferredFields):
        return later.bytes
    return sum(len(image.get('base64', '')) for image in record.get('images') or ())


def record_kind(record: Any) -> str:
    """Return the kind of whatever was deposited."""
    kind = record.get('kind') if isinstance(record, dict) else None
    return kind if isinstance(kind, str) else UNKNOWN

"""
The newest of every input, and how old it is.

Subscription callbacks deposit what arrived, unopened; the requester thread takes a snapshot when
it needs one, so that a camera at 30 Hz costs nothing between two requests. Ages count from
arrival, by this machine's monotonic clock: a stamp in a message may come from another one.
"""

from __future__ import annotations

from dataclasses import dataclass
import threading
from typing import Any


class InputsNotReady(Exception):
    """There is no observation to send; the text says which input is missing or stale."""


@dataclass(frozen=True, slots=True)
class InputSnapshot:
    """The inputs of one observation; `captured_ns` is the arrival of the oldest."""

    values: dict[str, Any]
    captured_ns: int


class LatestInputs:
    """One slot for each input, named when built; `topics` are for the texts."""

    def __init__(self, max_age_ns: dict[str, int], topics: dict[str, str] | None = None) -> None:
        self._max_age_ns, self._topics = max_age_ns, topics or {}
        self._slots: dict[str, tuple[Any, int]] = {}
        self._lock = threading.Lock()

    def deposit(self, name: str, value: Any, now_ns: int) -> None:
        """Store what just arrived."""
        with self._lock:
            self._slots[name] = (value, now_ns)

    def newest(self, name: str, now_ns: int) -> tuple[Any, int]:
        """Return the newest value of one input and when it arrived. Raises NotReady."""
        with self._lock:
            slot = self._slots.get(name)
        return self._checked(name, slot, now_ns)

    def snapshot(self, now_ns: int) -> InputSnapshot:
        """Return the newest of everything. Raises NotReady."""
        with self._lock:
            slots = dict(self._slots)
        checked = {n: self._checked(n, slots.get(n), now_ns) for n in self._max_age_ns}
        oldest_ns = min(arrived_ns for _, arrived_ns in checked.values())
        return InputSnapshot({name: value for name, (value, _) in checked.items()}, oldest_ns)

    def _checked(self, name: str, slot: tuple[Any, int] | None, now_ns: int) -> tuple[Any, int]:
        if slot is None:
            where = f' on {self._topics[name]}' if name in self._topics else ''
            raise InputsNotReady(f'nothing has arrived yet for {name}{where}')
        age_ns = now_ns - slot[1]
        if age_ns > self._max_age_ns[name]:
            allowed_s = self._max_age_ns[name] / 1e9
            raise InputsNotReady(f'{name} is {age_ns / 1e9:.2f} s old, {allowed_s:g} s is allowed')
        return slot

# SPDX-License-Identifier: Apache-2.0
"""
The latest message of each input, and its age.

Subscription callbacks deposit undecoded messages; the request thread takes a snapshot when needed,
so that a camera at 30 Hz costs nothing between two requests. Ages count from arrival, by this
machine's monotonic clock, because the stamp of a message may come from another machine.

Observation history: inputs of the last control steps, for policies that use several observations.

The tick thread records the newest inputs each control step, as references to undecoded bytes. The
request thread takes the rows that the session requires. An input slower than the control rate
appears in several rows. A session with one observation keeps no history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
import threading
from typing import Any


class InputsNotReady(Exception):
    """No observation can be sent; the text names the missing or stale input."""


@dataclass(frozen=True, slots=True)
class InputSnapshot:
    """The inputs of one observation; `captured_ns` is the arrival of the oldest."""

    values: dict[str, Any]
    captured_ns: int


class LatestInputs:
    """One slot per input; `topics` are for error texts."""

    def __init__(self, max_age_ns: dict[str, int], topics: dict[str, str] | None = None) -> None:
        self._max_age_ns, self._topics = max_age_ns, topics or {}
        self._slots: dict[str, tuple[Any, int]] = {}
        self._ids = dict.fromkeys(max_age_ns, 0)
        self._lock = threading.Lock()

    def deposit(self, name: str, value: Any, now_ns: int, message_id: int = 0) -> None:
        """Store a message that just arrived; `message_id` identifies it in a recording."""
        with self._lock:
            self._slots[name] = (value, now_ns)
            self._ids[name] = message_id

    def clear(self) -> None:
        """Forget all messages."""
        with self._lock:
            self._slots.clear()

    def newest(self, name: str, now_ns: int) -> tuple[Any, int]:
        """Return the newest value of one input and its arrival time. Raises InputsNotReady."""
        with self._lock:
            slot = self._slots.get(name)
        return self.checked(name, slot, now_ns)

    def read(self, names: Sequence[str]) -> tuple[list[tuple[Any, int] | None], tuple[int, ...]]:
        """
        Return the newest value of these inputs and its arrival time, None for none yet; and, as of
        the same instant, the id of the newest message of every input, 0 for none yet.
        """
        with self._lock:
            return [self._slots.get(name) for name in names], tuple(self._ids.values())

    def checked(self, name: str, slot: tuple[Any, int] | None, now_ns: int) -> tuple[Any, int]:
        """Return the slot of an input. Raises InputsNotReady where it is empty or too old."""
        where = f' on {self._topics[name]}' if name in self._topics else ''
        if slot is None:
            raise InputsNotReady(f'no message received yet for {name}{where}')
        age_ns = now_ns - slot[1]
        if age_ns > self._max_age_ns[name]:
            allowed_s = self._max_age_ns[name] / 1e9
            raise InputsNotReady(
                f'{name}{where} is {age_ns / 1e9:.2f} s old, {allowed_s:g} s is allowed'
            )
        return slot

    def snapshot(self, now_ns: int) -> InputSnapshot:
        """Return the newest value of each input. Raises InputsNotReady."""
        with self._lock:
            slots = dict(self._slots)
        checked = {n: self.checked(n, slots.get(n), now_ns) for n in self._max_age_ns}
        oldest_ns = min(arrived_ns for _, arrived_ns in checked.values())
        return InputSnapshot({name: value for name, (value, _) in checked.items()}, oldest_ns)


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """The inputs `steps_back` control steps before the newest."""

    snapshot: InputSnapshot
    steps_back: int


class ObservationHistory:
    """
    Snapshots of consecutive control steps of one episode. The tick thread calls `record`, the
    request thread everything else.
    """

    def __init__(self, inputs: LatestInputs) -> None:
        self._inputs = inputs
        self._steps_back: tuple[int, ...] = (0,)
        self._known: deque[InputSnapshot] = deque(maxlen=0)
        self._newest_step = 0
        self._lock = threading.Lock()
        self.gaps = 0

    def require(self, steps: int, stride_steps: int) -> None:
        """Configure the history for requests of `steps` observations; keeps recorded steps."""
        reach = (steps - 1) * stride_steps
        with self._lock:
            self._steps_back = tuple(range(reach, -1, -stride_steps))
            self._known = deque(self._known, maxlen=reach + 1 if reach else 0)

    def restart(self) -> None:
        """Clear the history for a new episode."""
        with self._lock:
            self._known.clear()

    def record(self, step: int, now_ns: int) -> None:
        """
        Record the newest inputs for control step number `step`.

        A missing step, or one with a missing or stale input, is a gap. Rows across a gap would
        have a wrong distance, so the history restarts after it.
        """
        # under the lock: a snapshot from before `restart` must not be added after it
        with self._lock:
            if not self._known.maxlen:
                return
            if step != self._newest_step + 1:
                self._end()
            self._newest_step = step
            try:
                self._known.append(self._inputs.snapshot(now_ns))
            except InputsNotReady:
                self._end()

    def _end(self) -> None:
        self.gaps += bool(self._known)
        self._known.clear()

    def take(self, now_ns: int) -> tuple[HistoryStep, ...]:
        """
        Return the observations of a request, oldest first. Raises InputsNotReady.

        With a history, the newest row is the newest control step, so that all rows are equally
        spaced. If the history is too short, its oldest snapshot is repeated.
        """
        current = self._inputs.snapshot(now_ns)
        with self._lock:
            known = list(self._known) or [current]
        newest = len(known) - 1
        return tuple(HistoryStep(known[max(0, newest - back)], back) for back in self._steps_back)

# SPDX-License-Identifier: Apache-2.0
"""
Observation history: inputs of the last control steps, for policies that use several observations.

The tick thread records the newest inputs each control step, as references to undecoded bytes. The
request thread takes the rows that the session requires. An input slower than the control rate
appears in several rows. A session with one observation keeps no history.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
import threading

from lerobot_serve.edge.inputs.latest import InputSnapshot, InputsNotReady, LatestInputs


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """The inputs `steps_back` control steps before the newest."""

    snapshot: InputSnapshot
    steps_back: int


class ObservationHistory:
    """
    Snapshots of consecutive control steps of one episode. The tick thread calls `tick`, the
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

    def tick(self, step: int, now_ns: int) -> None:
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
        present = self._inputs.snapshot(now_ns)
        with self._lock:
            known = list(self._known) or [present]
        newest = len(known) - 1
        return tuple(HistoryStep(known[max(0, newest - back)], back) for back in self._steps_back)

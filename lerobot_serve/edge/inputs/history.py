"""
What the inputs held at the last control steps, for policies that look back.

The tick thread has the newest inputs noted each control step: references to bytes that nobody
opens. The request thread takes the rows that the session asked for. An input slower than the
control rate stands in several rows, as the robot lived it. A session that asks for one
observation costs nothing: none is kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
import threading

from lerobot_serve.edge.inputs.latest import InputSnapshot, InputsNotReady, LatestInputs


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """What the inputs held `steps_back` control steps before the present."""

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
        """Keep what requests of `steps` observations need; what is known by now stays known."""
        reach = (steps - 1) * stride_steps
        with self._lock:
            self._steps_back = tuple(range(reach, -1, -stride_steps))
            self._known = deque(self._known, maxlen=reach + 1 if reach else 0)

    def restart(self) -> None:
        """Forget what is known: an episode begins."""
        with self._lock:
            self._known.clear()

    def tick(self, step: int, now_ns: int) -> None:
        """
        Note the newest inputs as those of the control step with the number `step`.

        A step that is missing, or at which an input was missing or stale, is a gap. Rows on its
        two sides would stand at a wrong distance, so that the history begins anew behind it.
        """
        # under the lock: what was taken before `restart` must not come in after it
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
        Return the observations of a request, oldest first. Raises NotReady.

        With a history, the present is the newest control step, so that all rows stand equally far
        apart. Where the history is too short, its oldest snapshot is repeated.
        """
        present = self._inputs.snapshot(now_ns)
        with self._lock:
            known = list(self._known) or [present]
        newest = len(known) - 1
        return tuple(HistoryStep(known[max(0, newest - back)], back) for back in self._steps_back)

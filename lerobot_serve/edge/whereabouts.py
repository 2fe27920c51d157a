"""What samples say of where the robot is: to begin from, to hold at, and since when not."""

from __future__ import annotations

import numpy as np

from lerobot_serve.cage.judgement import Last
from lerobot_serve.cage.start import Start
from lerobot_serve.edge.holding import Holding
from lerobot_serve.edge.step import Sensed


class Whereabouts:
    """The tick thread has it see each step."""

    def __init__(self, start: Start, holding: Holding, max_blind_ns: int) -> None:
        self._start, self._holding, self._max_blind_ns = start, holding, max_blind_ns
        self._seen_ns: int | None = None

    def see(self, sensed: Sensed, now_ns: int, *, plays: bool) -> None:
        """Take what is sensed in this step; a robot that plays needs no start."""
        if plays:
            self._start.forget()
        else:
            self._start.see(sensed.measured, sensed.arrived_ns)
        if sensed.measured is not None and np.isfinite(sensed.measured).all():
            self._seen_ns = now_ns

    def why_no_start(self) -> str:
        """Return why nothing may begin from here, empty when it may."""
        return self._start.why_not()

    def begin(self) -> Last | None:
        """Return what a first command is bounded from, None while that is not known."""
        return self._start.last()

    def blind(self, now_ns: int) -> str:
        """Return why the robot must not move on for want of measurements, empty when it may."""
        if self._seen_ns is not None and now_ns - self._seen_ns <= self._max_blind_ns:
            return ''
        return 'its state is missing or too old'

    def moved_to(self, last: Last, *, holds: bool) -> Last | None:
        """Return where a robot that holds now stands, when it was moved by hand meanwhile."""
        if holds and self._holding.was_moved(last.position, self._start.agreed):
            self._holding.end()
            return self._start.last()
        if not holds:
            self._holding.end()
        return None

    def pose(self, commanded: np.ndarray) -> np.ndarray:
        """Return where it stands, what is commanded where that is not known."""
        return commanded if self._start.agreed is None else self._start.agreed

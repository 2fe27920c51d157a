"""Says once why a robot is not commanded, when that is more than a moment's wait. Plain."""

from __future__ import annotations

from collections.abc import Callable


class Waiting:
    """`look` now and then, from one thread: a reason that is there twice in a row is logged."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._before = self._logged = ''

    def look(self, why: str) -> None:
        """Take the present reason, empty when the robot is commanded."""
        if why and why == self._before and why != self._logged:
            self._logged = why
            self._log(f'the robot is not commanded: {why}')
        if not why:
            self._logged = ''
        self._before = why

"""Says once why a robot is not commanded, when that is more than a moment's wait. Plain."""

from __future__ import annotations

from collections.abc import Callable


class NotCommandedWarning:
    """`look` now and then, from one thread: a reason that is there twice in a row is logged."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._before = self._logged = ''
        self._commands = 0

    def look(self, why: str, commands: int) -> None:
        """
        Take the present reason, empty while there is nothing to begin with, and the commands so
        far: after one of them the same reason is logged again.
        """
        if commands != self._commands:
            self._commands, self._logged = commands, ''
        if why and why == self._before and why != self._logged:
            self._logged = why
            self._log(f'the robot is not commanded: {why}')
        self._before = why

# SPDX-License-Identifier: Apache-2.0
"""Logs once why no commands are sent, if the reason persists. Plain."""

from __future__ import annotations

from collections.abc import Callable


class NotCommandedWarning:
    """One thread calls `look` periodically; a reason seen twice in a row is logged."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._before = self._logged = ''
        self._commands = 0

    def look(self, why: str, commands: int) -> None:
        """
        Process the current reason (empty: none) and the count of commands: after a new command the
        same reason is logged again.
        """
        if commands != self._commands:
            self._commands, self._logged = commands, ''
        if why and why == self._before and why != self._logged:
            self._logged = why
            self._log(f'no commands sent: {why}')
        self._before = why

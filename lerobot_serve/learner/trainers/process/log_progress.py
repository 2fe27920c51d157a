# SPDX-License-Identifier: Apache-2.0
"""Read steps and loss from the lines of a training. Pure; any thread."""

from __future__ import annotations

import math
import re

from lerobot_serve.learner.trainers.base import Progress

NUMBER = re.compile(r'([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)([KMB]?)')
UNITS = {'': 1.0, 'K': 1e3, 'M': 1e6, 'B': 1e9}


class LogProgress:
    """The progress so far; without steps its share and its remaining time are not known."""

    def __init__(self, step: str, loss: str, steps: int) -> None:
        self._step, self._loss, self._steps = re.compile(step), re.compile(loss), steps
        self._share, self._last_loss = 0.0, math.nan
        # share and time of the first step that was seen: loading a model takes no part
        self._first: tuple[float, float] | None = None
        self._now_s = 0.0

    def see(self, line: str, now_s: float) -> bool:
        """Return whether a line says something new."""
        before = self._share, self._last_loss
        step = _found(self._step, line)
        if step is not None and self._steps:
            # lerobot-train rounds to thousands: no share goes back
            self._share = max(self._share, min(1.0, step / self._steps))
            self._first = self._first or (self._share, now_s)
            self._now_s = now_s
        loss = _found(self._loss, line)
        self._last_loss = self._last_loss if loss is None else loss
        return (self._share, self._last_loss) != before

    def progress(self) -> Progress:
        return Progress(self._share, self._last_loss, self._remaining_s())

    def _remaining_s(self) -> float:
        if self._first is None or self._share <= self._first[0]:
            return math.nan
        share, began_s = self._first
        return (self._now_s - began_s) * (1 - self._share) / (self._share - share)


def _found(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the number of the first group that matches; None for none."""
    match = pattern.search(line)
    text = next((group for group in match.groups() if group), '') if match else ''
    number = NUMBER.fullmatch(text.rstrip(','))
    return float(number[1]) * UNITS[number[2]] if number else None

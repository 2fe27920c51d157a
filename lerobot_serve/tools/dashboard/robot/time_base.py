# SPDX-License-Identifier: Apache-2.0
"""Place stamps of a robot on the steady clock of the dashboard. Pure."""

from __future__ import annotations

# further apart: a clock was set, or messages waited
RESYNC_MS = 1000


class TimeBase:
    """
    Keeps the distances between the stamps of one robot; only how far its clock is off is measured,
    by when messages arrive. The stamps are for a plot and are not compared with another clock.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def place(self, stamp_ms: float, arrived_ms: float) -> int:
        """Return the time of a stamp on the steady clock [ms]."""
        offset_ms = arrived_ms - stamp_ms
        if self._offset_ms is None or abs(offset_ms - self._offset_ms) > RESYNC_MS:
            self._offset_ms = offset_ms
        # what arrives sooner than ever shows that the others were late
        self._offset_ms = min(self._offset_ms, offset_ms)
        return int(stamp_ms + self._offset_ms)

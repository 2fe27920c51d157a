# SPDX-License-Identifier: Apache-2.0
"""
Places chunks on a plot: one line a chunk, also where chunks overlap. One thread.

A curve has one value at an instant, so chunks that overlap need curves of their own. A chunk takes
the first lane whose last chunk has ended.
"""

from __future__ import annotations

LANES = 4


class PlanLanes:
    """The lanes of one robot."""

    def __init__(self) -> None:
        self._end_ns = [0] * LANES

    def take(self, begin_ns: int, end_ns: int) -> int | None:
        """Return the lane of a chunk of this period; None where all lanes have one."""
        for lane, taken_until_ns in enumerate(self._end_ns):
            if taken_until_ns < begin_ns:
                self._end_ns[lane] = end_ns
                return lane
        return None

# SPDX-License-Identifier: Apache-2.0
"""
Which episode a robot runs, from two topics that arrive out of order: ExecutedAction and EdgeState.

A report that is a little older than the newest one is skipped; one that is much older is from a
clock that stepped back, and counts. Pure.
"""

from __future__ import annotations

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EdgeState, ExecutedAction
from lerobot_serve.tools.bags.message import BagMessage, EDGE_STATE, EXECUTED

# how late a message may be behind one that was sent after it
REORDERED_NS = 2 * 10**9


def read_report(message: BagMessage) -> ExecutedAction | EdgeState | None:
    """Return what a robot says of itself; None for another message, or a malformed one."""
    try:
        return message.record() if message.type in (EXECUTED, EDGE_STATE) else None
    except Malformed:
        return None


class ReportOrder:
    """Skips reports of one robot that others have overtaken."""

    def __init__(self) -> None:
        self._newest_ns: int | None = None

    def is_news(self, stamp_ns: int) -> bool:
        """Return whether a report counts."""
        behind_ns = 0 if self._newest_ns is None else self._newest_ns - stamp_ns
        if 0 < behind_ns < REORDERED_NS:
            return False
        self._newest_ns = stamp_ns
        return True

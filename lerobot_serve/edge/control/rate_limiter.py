# SPDX-License-Identifier: Apache-2.0
"""
Limits commands to one per control step, by the clock.

Limits bound each command as one control step. After a delayed tick the next one follows almost at
once: two full steps within a millisecond. So a tick earlier than half a step before its due time
is skipped. In any window the commands after the first are at most the steps of the
window and half a step more; for a joint that is max_velocity times the window and half a step.
Plain; the tick thread.
"""

from __future__ import annotations


class CommandRateLimiter:
    """Tracks the due time of the next command."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Return whether a command may be sent now, and count it as sent."""
        due_ns = now_ns if self._due_ns is None else self._due_ns
        if now_ns < due_ns - self._step_ns // 2:
            return False
        self._due_ns = max(now_ns, due_ns) + self._step_ns
        return True

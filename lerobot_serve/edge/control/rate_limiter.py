"""
Commands no faster than one a control step, by the clock.

Limits bound each command as one control step. A tick that was held up is followed by the next one
almost at once: two full steps within a millisecond. So a tick that is due sooner than half a step
after its time is skipped. In any window the commands after the first are at most the steps of the
window and half a step more; for a joint that is max_velocity times the window and half a step.
Plain; the tick thread.
"""

from __future__ import annotations


class CommandRateLimiter:
    """See the module."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Tell whether a command may be given now, and count it as given."""
        due_ns = now_ns if self._due_ns is None else self._due_ns
        if now_ns < due_ns - self._step_ns // 2:
            return False
        self._due_ns = max(now_ns, due_ns) + self._step_ns
        return True

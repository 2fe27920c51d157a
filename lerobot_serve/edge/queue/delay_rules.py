"""
How many rows of a new chunk are skipped because their time has passed. Pure functions.

Each rule is given the delay in rows by the clock, the rows that the robot has taken since the
request, and the rows of the chunk; it returns the first row to play, from 0 to all of them.
"""

from __future__ import annotations

from collections.abc import Callable

DelayRule = Callable[[int, int, int], int]


def lived(latency_rows: int, lived_rows: int, chunk_rows: int) -> int:
    """
    Skip what the clock says, but no row in whose time the robot stood still: the first chunk of
    an episode begins with its first row, however late it is.
    """
    return max(0, min(latency_rows, lived_rows, chunk_rows))


def clamped(latency_rows: int, _lived_rows: int, chunk_rows: int) -> int:
    """Skip what the clock says, within the chunk (LeRobot 0.5 and 0.6)."""
    return max(0, min(latency_rows, chunk_rows))


def raw(latency_rows: int, _lived_rows: int, chunk_rows: int) -> int:
    """Slice at what the clock says; a negative delay keeps the tail (LeRobot 0.4)."""
    return slice(latency_rows, None).indices(chunk_rows)[0]


DELAY_RULES: dict[str, DelayRule] = {'lived': lived, 'clamped': clamped, 'raw': raw}

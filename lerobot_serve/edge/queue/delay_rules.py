# SPDX-License-Identifier: Apache-2.0
"""
Delay rules: how many elapsed rows of a new chunk to skip. Pure functions.

Each rule receives the delay in rows by the clock, the rows taken since the request, and the rows
of the chunk; it returns the first row to execute, from 0 to all of them.
"""

from __future__ import annotations

from collections.abc import Callable

DelayRule = Callable[[int, int, int], int]


def moving_time(latency_rows: int, taken_rows: int, chunk_rows: int) -> int:
    """
    Skip the elapsed rows, at most those the robot executed: the first chunk of an episode starts
    with its first row, however late it is.
    """
    return max(0, min(latency_rows, taken_rows, chunk_rows))


def elapsed_time(latency_rows: int, _taken_rows: int, chunk_rows: int) -> int:
    """Skip the elapsed rows, within the chunk (LeRobot 0.5 and 0.6)."""
    return max(0, min(latency_rows, chunk_rows))


def lerobot(latency_rows: int, _taken_rows: int, chunk_rows: int) -> int:
    """Slice at the elapsed rows; a negative delay keeps the tail (LeRobot 0.4)."""
    return slice(latency_rows, None).indices(chunk_rows)[0]


DELAY_RULES: dict[str, DelayRule] = {
    'moving_time': moving_time,
    'elapsed_time': elapsed_time,
    'lerobot': lerobot,
}

# SPDX-License-Identifier: Apache-2.0
"""Slow down an address that sends wrong tokens, and count them. One thread."""

from __future__ import annotations

FIRST_DELAY_S, LONGEST_DELAY_S = 0.25, 8.0
FORGET_S, ADDRESSES = 60.0, 1024


class WrongTokens:
    """How often each address was wrong; the oldest address is forgotten first."""

    def __init__(self) -> None:
        self.total = 0
        self._failures: dict[str, tuple[int, float]] = {}

    def delay_s(self, address: str, now_s: float) -> float:
        """Return how long the next reply to an address waits."""
        count, last_s = self._failures.get(address, (0, 0.0))
        if not count or now_s - last_s > FORGET_S:
            return 0.0
        return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(count - 1, 10)))

    def note(self, address: str, now_s: float) -> None:
        """Count a wrong token."""
        self.total += 1
        count, last_s = self._failures.pop(address, (0, 0.0))
        is_recent = now_s - last_s <= FORGET_S
        self._failures[address] = (count + 1 if is_recent else 1), now_s
        while len(self._failures) > ADDRESSES:
            del self._failures[next(iter(self._failures))]

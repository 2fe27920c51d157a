# SPDX-License-Identifier: Apache-2.0
"""
Limit the rate of NO_SESSION replies, per client and in total. Intake thread.

All clients read the topic of these replies, so the cost of one grows with the number of clients.
"""

from __future__ import annotations

from collections import OrderedDict

CLIENT_PERIOD_S = 0.5
MAX_REPLIES_PER_S = 50
MAX_CLIENTS = 1024


class NoSessionLimiter:
    """See the module."""

    def __init__(self) -> None:
        self._answered_ns: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._second, self._answers = -1, 0

    def allows_reply(self, client_id: str, session_epoch: int, now_ns: int) -> bool:
        """Return whether to reply to this client now, and count the reply."""
        key, second = (client_id, session_epoch), now_ns // 1_000_000_000
        last_ns = self._answered_ns.get(key)
        if last_ns is not None and now_ns - last_ns < 1e9 * CLIENT_PERIOD_S:
            return False
        if second != self._second:
            self._second, self._answers = second, 0
        if self._answers >= MAX_REPLIES_PER_S:
            return False
        self._answers += 1
        self._answered_ns[key] = now_ns
        self._answered_ns.move_to_end(key)
        if len(self._answered_ns) > MAX_CLIENTS:
            self._answered_ns.popitem(last=False)
        return True

# SPDX-License-Identifier: Apache-2.0
"""
Limit the rate of NO_SESSION replies, per session, per client and in total. Intake thread.

All clients read the topic of these replies, so the cost of one grows with the number of clients.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

SESSION_PERIOD_S = 0.5
# a client with another session in each request must leave replies to others
MAX_CLIENT_REPLIES_PER_S, MAX_REPLIES_PER_S = 4, 50
MAX_SESSIONS = 1024


class NoSessionLimiter:
    """See the module."""

    def __init__(self) -> None:
        self._answered_ns: OrderedDict[tuple[str, int], int] = OrderedDict()
        # replies of this second by client: at most MAX_REPLIES_PER_S clients
        self._second, self._answers = -1, Counter[str]()

    def allows_reply(self, client_id: str, session_epoch: int, now_ns: int) -> bool:
        """Return whether to reply to this client now, and count the reply."""
        key, second = (client_id, session_epoch), now_ns // 1_000_000_000
        last_ns = self._answered_ns.get(key)
        if last_ns is not None and now_ns - last_ns < 1e9 * SESSION_PERIOD_S:
            return False
        if second != self._second:
            self._second, self._answers = second, Counter()
        is_client_done = self._answers[client_id] >= MAX_CLIENT_REPLIES_PER_S
        if is_client_done or self._answers.total() >= MAX_REPLIES_PER_S:
            return False
        self._answers[client_id] += 1
        self._answered_ns[key] = now_ns
        self._answered_ns.move_to_end(key)
        if len(self._answered_ns) > MAX_SESSIONS:
            self._answered_ns.popitem(last=False)
        return True

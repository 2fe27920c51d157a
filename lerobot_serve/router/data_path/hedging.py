# SPDX-License-Identifier: Apache-2.0
"""
When a request is hedged, and how often: delay and budget. No ROS; called under RoutingTable.lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from lerobot_serve.router.data_path.rules import DispatchRules
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot_stats import SlotStats

# shortest hedge delay: an earlier hedge nearly always loses
HEDGE_FLOOR_NS = 5_000_000
# largest number of hedges in a burst
HEDGE_BURST = 16.0


class HedgeBudget:
    """Grows by a share with each request, shrinks by one with each hedge."""

    def __init__(self) -> None:
        self._left = HEDGE_BURST

    def earn(self, percent: float) -> None:
        self._left = min(HEDGE_BURST, self._left + percent / 100)

    def spend(self) -> bool:
        """Take one hedge; return whether the budget allowed it."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Hedging:
    """See the module. `hedges` were sent; of these, `won` were replied to first."""

    def __init__(self, stats: SlotStats, slot_names: Iterable[str]) -> None:
        self._stats = stats
        # one budget a slot: a slow slot must not use up that of the other
        self._budgets = {name: HedgeBudget() for name in slot_names}
        self.hedges = self.won = 0

    def earn(self, slot_name: str, rules: DispatchRules) -> None:
        """Let the budget of a slot grow by one request."""
        self._budgets[slot_name].earn(rules.hedge_budget_percent)

    def delay_ns(self, replica: Replica, rules: DispatchRules) -> int | None:
        """Return when to hedge a request that is sent to a replica now; None for never."""
        if not (rules.hedge_factor and replica.is_stateless):
            return None
        # the replica's own p95 if known: that of the slot includes hedge delays
        p95_ms = replica.latency.percentile_ms(95)
        if isnan(p95_ms):
            p95_ms = self._stats.slot(replica.slot).latency.percentile_ms(95)
        if isnan(p95_ms):
            return None
        return max(int(rules.hedge_factor * p95_ms * 1e6), HEDGE_FLOOR_NS)

    def spend(self, slot_name: str, rules: DispatchRules) -> bool:
        """Count one hedge; return whether the budget of the slot allowed it."""
        # 0 % disables hedging, whatever is left of the budget
        is_allowed = rules.hedge_budget_percent > 0 and self._budgets[slot_name].spend()
        self.hedges += is_allowed
        return is_allowed

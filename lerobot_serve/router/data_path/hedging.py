# SPDX-License-Identifier: Apache-2.0
"""
Delay and budget of hedged requests. No ROS; called under RoutingTable.lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot_stats import SlotStats

# shortest hedge delay: the first copy nearly always wins against an earlier hedge
HEDGE_FLOOR_NS = 5_000_000
# largest number of hedges in a burst
HEDGE_BURST = 16.0


class Hedging:
    """
    See the module. The budget of a slot is a token bucket: each request adds a share of a token,
    each hedge takes one. `hedges` counts those sent, `won` those that were replied to first.
    """

    def __init__(self, stats: SlotStats, slot_names: Iterable[str]) -> None:
        self._stats = stats
        # one budget per slot: a slow slot must not use up the budget of the other
        self._tokens = dict.fromkeys(slot_names, HEDGE_BURST)
        self.hedges = self.won = 0

    def earn(self, slot_name: str, rules: RouterParameters) -> None:
        """Add the share of one request to the budget of a slot."""
        earned = self._tokens[slot_name] + rules.hedge_budget_percent / 100
        self._tokens[slot_name] = min(HEDGE_BURST, earned)

    def delay_ns(self, replica: Replica, rules: RouterParameters) -> int | None:
        """Return the hedge delay of a request to a replica; None for no hedge."""
        if not (rules.hedge_factor and replica.is_stateless):
            return None
        # p95 of the replica if known: p95 of the slot includes hedge delays
        p95_ms = replica.latency.percentile_ms(95)
        if isnan(p95_ms):
            p95_ms = self._stats.slot(replica.slot).latency.percentile_ms(95)
        if isnan(p95_ms):
            return None
        return max(int(rules.hedge_factor * p95_ms * 1e6), HEDGE_FLOOR_NS)

    def spend(self, slot_name: str, rules: RouterParameters) -> bool:
        """Take one hedge from the budget of a slot and count it; return whether it is allowed."""
        # 0 % disables hedging at once, also with tokens left
        is_allowed = rules.hedge_budget_percent > 0 and self._tokens[slot_name] >= 1
        self._tokens[slot_name] -= is_allowed
        self.hedges += is_allowed
        return is_allowed

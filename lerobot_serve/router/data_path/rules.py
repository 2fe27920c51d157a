# SPDX-License-Identifier: Apache-2.0
"""Settings of the dispatcher, derived from the parameters; replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.router.placement.split import SINGLE_SLOT


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """
    split_percent  share of new episodes to slot a
    timeout_ns     a later reply counts as a failure and fails over to another replica
    hedge_factor   hedge after hedge_factor x recent p95; 0 disables
    hedge_budget_percent  largest share of requests that are hedged; 0 disables
    failover_slots slots that take over even with share 0 or a policy on trial
    """

    split_percent: int
    timeout_ns: int
    hedge_factor: float
    hedge_budget_percent: float
    failover_slots: frozenset[str] = frozenset()

    def share_percent(self, slot_name: str) -> int:
        """Return the share of new episodes that is meant for a slot; the only one has all."""
        if slot_name == SINGLE_SLOT:
            return 100
        return self.split_percent if slot_name == 'a' else 100 - self.split_percent


@dataclass(frozen=True, slots=True)
class ShadowRules:
    """
    percent         share of the requests that are copied to the shadow
    spread_percent  share of these that are also sent to the live policy a second time
    """

    percent: float
    spread_percent: float


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

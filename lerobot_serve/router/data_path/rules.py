# SPDX-License-Identifier: Apache-2.0
"""Settings of the dispatcher, derived from the parameters."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.limits import SINGLE_SLOT


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """
    Immutable; a change replaces the object.

    split_percent         share of new episodes to slot a
    timeout_ns            time limit of a reply; a later one counts as a failure
    hedge_factor          hedge after hedge_factor x recent p95; 0 disables
    hedge_budget_percent  largest share of requests that are hedged; 0 disables
    failover_slots        slots that take over even with share 0 or a policy on trial
    """

    split_percent: int
    timeout_ns: int
    hedge_factor: float
    hedge_budget_percent: float
    failover_slots: frozenset[str] = frozenset()

    def share_percent(self, slot_name: str) -> int:
        """Return the configured share of new episodes of a slot; 100 for a single slot."""
        if slot_name == SINGLE_SLOT:
            return 100
        return self.split_percent if slot_name == 'a' else 100 - self.split_percent

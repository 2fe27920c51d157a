# SPDX-License-Identifier: Apache-2.0
"""
The state that routing decisions depend on, and the lock that guards it.

The threads `intake`, `replies` and `alarm` route requests, `control` opens and closes sessions,
the executor records reports and builds messages. Each holds `lock` for microseconds and makes no
blocking call under it.
"""

from __future__ import annotations

from collections.abc import Callable
import threading

from lerobot_serve.quotas import Quotas
from lerobot_serve.router.canary.facts import EpisodeEvent
from lerobot_serve.router.data_path.in_flight import InFlightRequests
from lerobot_serve.router.data_path.uncharged_requests import UnchargedRequests
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import effective_shares
from lerobot_serve.router.placement.placement_table import PlacementTable
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot, VerdictRecords
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.sessions.client_sessions import ClientSessions


class RoutingTable:
    """
    Slots, sessions of clients, placements, counters, requests in flight and the parameters in
    force, `rules`. `verdicts` are those of all slots; `store_event` is that of SlotStats.
    `lock` guards all of them but `quotas`, which have their own; `sessions` may be read without.
    """

    def __init__(
        self,
        rules: RouterParameters,
        *,
        placements: PlacementTable,
        verdicts: VerdictRecords | None = None,
        store_event: Callable[[EpisodeEvent], int] | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.slots = {n: Slot(n, servers, rules, verdicts) for n, servers in rules.slots.items()}
        self.replicas: dict[str, Replica] = {
            replica.name: replica for slot in self.slots.values() for replica in slot
        }
        self.placements = placements
        self.sessions = ClientSessions(grace_s=rules.session_grace_s, idle_s=rules.session_idle_s)
        self.stats = SlotStats(
            tuple(self.slots),
            rules.max_remembered_placements,
            verdict_within_ns=rules.verdict_within_ns,
            store_event=store_event,
        )
        self.in_flight, self.quotas = InFlightRequests(), Quotas()
        self.uncharged = UnchargedRequests()
        self.quotas.apply(rules.quota_rules, rules.quota_burst_s)
        self.change_rules(rules)

    @property
    def rules(self) -> RouterParameters:
        return self._rules

    def change_rules(self, rules: RouterParameters) -> None:
        """Replace the rules and update the slots accordingly. Under the lock."""
        self._rules = rules
        self.placements.split_percent = rules.split_percent if len(self.slots) > 1 else None
        for slot in self.slots.values():
            slot.has_share = rules.share_percent(slot.name) > 0
            slot.takes_failover = slot.name in rules.takeover_slots

    def slot_of(self, replica: Replica) -> Slot:
        """Return the slot of a replica."""
        return self.slots[replica.slot]

    def shares(self, now_ns: int) -> dict[str, int]:
        """Return the effective share of new episodes [%] of each slot. Under the lock."""
        configured = {name: self.rules.share_percent(name) for name in self.slots}
        conditions = {name: slot.conditions(now_ns) for name, slot in self.slots.items()}
        return effective_shares(configured, conditions)

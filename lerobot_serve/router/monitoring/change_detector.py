# SPDX-License-Identifier: Apache-2.0
"""
Find out whether what operators decide by has changed since it was published. The executor thread.

Counters, loads and latencies change with each request; they wait for the timer of a second.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.monitoring.reports import slot_state_code

# a text that changes all the time costs at most this many messages per second
MAX_RATE_HZ = 10
MIN_INTERVAL_NS = 10**9 // MAX_RATE_HZ

Digest = tuple[object, ...]


class ChangeDetector:
    """The digest that was published last, and when; `digest` returns the present one."""

    def __init__(self, digest: Callable[[], Digest]) -> None:
        self._digest = digest
        self._published: Digest | None = None
        self._published_ns = -MIN_INTERVAL_NS

    def is_due(self, now_ns: int) -> bool:
        """Return whether to publish: the digest differs, and MAX_RATE_HZ allows it."""
        is_allowed = now_ns - self._published_ns >= MIN_INTERVAL_NS
        return is_allowed and self._digest() != self._published

    def on_published(self, now_ns: int) -> None:
        self._published, self._published_ns = self._digest(), now_ns


def router_digest(table: RoutingTable, now_ns: int, storage_problem: str) -> Digest:
    """Return the split, and the state, reason, policy and share of each slot and replica."""
    with table.lock:
        shares = table.shares(now_ns)
        slots = tuple(
            (
                *(name, slot_state_code(slot), slot.text, slot.policy, shares[name]),
                tuple((each.name, int(each.state), each.text, each.policy) for each in slot),
            )
            for name, slot in table.slots.items()
        )
    return table.rules.split_percent, storage_problem, slots


def canary_digest(canary: Canary) -> Digest:
    """Return the state of a canary without its progress, which its text has."""
    record = canary.record
    policies = record.policies
    return (
        *(canary.state, canary.step, record.planned_policy),
        *(policies['candidate'], policies['champion']),
        canary.history[-1:],
    )

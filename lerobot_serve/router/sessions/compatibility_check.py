# SPDX-License-Identifier: Apache-2.0
"""
Fetch the policy signatures of the slots and check that one client can use all slots.

The thread `control`; results are written under RoutingTable.lock.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.replicas.compatibility import incompatibility, PolicySignature
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool
from lerobot_serve_interfaces.srv import GetStatus


class CompatibilityCheck:
    """`known` maps each slot to its policy and the GetStatus reply of one of its replicas."""

    def __init__(
        self, table: RoutingTable, calls: ReplicaCallPool, log_warning: Callable[[str], None]
    ) -> None:
        self._table, self._call_pool, self._log_warning = table, calls, log_warning
        self.known: dict[str, tuple[str, GetStatus.Response]] = {}

    def update(self, timeout_s: float) -> None:
        """Fetch the status of slots whose policy has changed, and compare the slots."""
        for slot in self._table.slots.values():
            self._fetch_status(slot, timeout_s)
        self._compare()

    def _fetch_status(self, slot: Slot, timeout_s: float) -> None:
        known = self.known.get(slot.name)
        replica = slot.choose(self._call_pool.unresponsive)
        if replica is None or (known and known[0] == slot.policy):
            return
        policy = slot.policy
        outcome = self._call_pool.each([replica.name], lambda c: c.status(timeout_s))
        reply = outcome[replica.name]
        if not isinstance(reply, Exception):
            self.known[slot.name] = policy, reply

    def _compare(self) -> None:
        """Set the incompatibility of the second slot with the first."""
        known = [name for name in self._table.slots if name in self.known]
        if len(known) < 2:
            return
        first, second = known
        a, b = (signature_of(self.known[name][1]) for name in known)
        text = incompatibility(b, first, a)
        slot = self._table.slots[second]
        if text and text != slot.incompatibility:
            self._log_warning(f'slot {second}: {text}')
        with self._table.lock:
            slot.incompatibility = text


def signature_of(reply: GetStatus.Response) -> PolicySignature:
    """Return the signature of the policy in a GetStatus reply."""
    return PolicySignature(
        tuple(reply.state_names),
        tuple(reply.action_names),
        tuple(camera.name for camera in reply.cameras),
        reply.observation_steps,
        reply.observation_stride_steps,
    )

# SPDX-License-Identifier: Apache-2.0
"""
Fetch the status of the policies in the slots, and check that they can serve the same robots.

The thread `control`; results are written under RoutingTable.lock.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.contract.records import GetStatusResponse
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool

# field of GetStatus -> its name in texts
FIELD_TEXTS = {
    'action_names': 'actions',
    'state_names': 'values of observation.state',
    'cameras': 'cameras',
    'observation_steps': 'observations per request',
    'observation_stride_steps': 'control steps between two observations',
}


class CompatibilityCheck:
    """`known` maps each slot to its policy and the GetStatus reply of one of its replicas."""

    def __init__(
        self, table: RoutingTable, calls: ReplicaCallPool, log_warning: Callable[[str], None]
    ) -> None:
        self._table, self._call_pool, self._log_warning = table, calls, log_warning
        self.known: dict[str, tuple[str, GetStatusResponse]] = {}

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
        text = incompatibility(self.known[second][1], first, self.known[first][1])
        slot = self._table.slots[second]
        if text and text != slot.incompatibility:
            self._log_warning(f'slot {second}: {text}')
        with self._table.lock:
            slot.incompatibility = text


def incompatibility(
    status: GetStatusResponse, other_slot: str, other_status: GetStatusResponse
) -> str:
    """Return why a slot cannot serve the robots of `other_slot`; empty when it can."""
    for field, what in FIELD_TEXTS.items():
        value, other = (_comparable(each, field) for each in (status, other_status))
        # empty names: the policy has none and uses those of the robot
        if value != other and ((value and other) or field == 'cameras'):
            return (
                f'incompatible with slot {other_slot}: {what} differ: {_shorten(value)} / '
                f'{_shorten(other)}; load policies for the same robots into the slots'
            )
    return ''


def _comparable(status: GetStatusResponse, field: str) -> tuple[str, ...] | int:
    if field == 'cameras':
        return tuple(sorted(camera.name for camera in status.cameras))
    value: tuple[str, ...] | int = getattr(status, field)
    return value


def _shorten(value: tuple[str, ...] | int) -> str:
    text = ', '.join(value) or 'none' if isinstance(value, tuple) else str(value)
    return text if len(text) <= 200 else f'{text[:200]}...'

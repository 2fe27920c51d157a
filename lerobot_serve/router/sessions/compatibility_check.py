# SPDX-License-Identifier: Apache-2.0
"""
Fetch the signatures of the slots' policies and check that one client can use all slots.

The thread `control`; written under the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lerobot_serve.router.data_path.dispatcher import Dispatcher
from lerobot_serve.router.replicas.compatibility import incompatibility, PolicySignature
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.sessions.opening import ReplicaCallPool


class CompatibilityCheck:
    """`known` maps each slot to its policy and the GetStatus reply that describes it."""

    def __init__(
        self, dispatcher: Dispatcher, callers: ReplicaCallPool, warn: Callable[[str], None]
    ) -> None:
        self._dispatcher, self._call_pool, self._warn = dispatcher, callers, warn
        self.known: dict[str, tuple[str, Any]] = {}

    def update(self, timeout_s: float) -> None:
        """Fetch the status of slots whose policy has changed; compare."""
        for slot in self._dispatcher.slots.values():
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
        """Check the second slot against the first."""
        known = [name for name in self._dispatcher.slots if name in self.known]
        if len(known) < 2:
            return
        first, second = known
        a, b = (signature_of(self.known[name][1]) for name in known)
        text = incompatibility(b, first, a)
        slot = self._dispatcher.slots[second]
        if text and text != slot.misfit:
            self._warn(f'slot {second}: {text}')
        with self._dispatcher.lock:
            slot.misfit = text


def signature_of(reply: Any) -> PolicySignature:
    """Return the signature of the policy in a GetStatus reply."""
    return PolicySignature(
        tuple(reply.state_names),
        tuple(reply.action_names),
        tuple(camera.name for camera in reply.cameras),
        reply.observation_steps,
        reply.observation_stride_steps,
    )

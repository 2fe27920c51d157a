"""
What the policies of the slots ask of robots, learned from their servers, and whether one robot can
be served by all. The control thread; written under the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lerobot_serve.router.agreement import Contract, misfit
from lerobot_serve.router.dispatch import Dispatcher
from lerobot_serve.router.opening import Callers
from lerobot_serve.router.slots import Slot


class Contracts:
    """`known` is, for each slot, the policy and the reply of GetStatus that told of it."""

    def __init__(
        self, dispatcher: Dispatcher, callers: Callers, tell: Callable[[str], None]
    ) -> None:
        self._dispatcher, self._callers, self._tell = dispatcher, callers, tell
        self.known: dict[str, tuple[str, Any]] = {}

    def look(self, timeout_s: float) -> None:
        """Ask where the policy is another one than before; compare."""
        for slot in self._dispatcher.slots.values():
            self._learn(slot, timeout_s)
        self._compare()

    def _learn(self, slot: Slot, timeout_s: float) -> None:
        known = self.known.get(slot.name)
        replica = slot.choose(self._callers.quiet)
        if replica is None or (known and known[0] == slot.policy):
            return
        policy = slot.policy
        outcome = self._callers.each([replica.name], lambda c: c.status(timeout_s))
        reply = outcome[replica.name]
        if not isinstance(reply, Exception):
            self.known[slot.name] = policy, reply

    def _compare(self) -> None:
        """The first slot sets what the other has to fit."""
        known = [name for name in self._dispatcher.slots if name in self.known]
        if len(known) < 2:
            return
        first, second = known
        a, b = (contract_of(self.known[name][1]) for name in known)
        text = misfit(b, first, a)
        slot = self._dispatcher.slots[second]
        if text and text != slot.misfit:
            self._tell(f'slot {second}: {text}')
        with self._dispatcher.lock:
            slot.misfit = text


def contract_of(reply: Any) -> Contract:
    """Return what GetStatus's reply says of the policy."""
    return Contract(
        tuple(reply.state_names),
        tuple(reply.action_names),
        tuple(camera.name for camera in reply.cameras),
        reply.observation_steps,
        reply.observation_stride_steps,
    )

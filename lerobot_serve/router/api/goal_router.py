# SPDX-License-Identifier: Apache-2.0
"""Select the server of each PredictChunk goal, a request without a session."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.data_path.header import Envelope
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.router.core import RouterHost
from lerobot_serve.router.placement.episode_placement import NoSlotAvailable
from lerobot_serve.trace.format.records import RecordIds


@dataclass(frozen=True, slots=True)
class GoalRoute:
    """
    The server of a goal and the flags of its chunk; without a server, status, reason, and the time
    after which the next goal is admitted, if it is known.
    """

    server: str = ''
    slot: str = ''
    flags: int = 0
    status: Status = Status.OK
    text: str = ''
    retry_after_s: float = 0.0


class GoalRouter:
    """The executor thread; `refusal` and `charge` any thread."""

    def __init__(self, host: RouterHost) -> None:
        self._host = host

    def choose(self, start: Envelope, goal_bytes: int) -> GoalRoute:
        """Place the episode of a goal of this size and return the route of the goal."""
        core = self._host.core
        if core is None or not core.is_open:
            return GoalRoute(
                status=Status.DRAINING, text=f'not ready: {self._host.server_state[1]}'
            )
        header, client_id, episode_id = start
        refused = core.table.quotas.admit(client_id, goal_bytes, core.now_ns)
        if refused:
            core.drops.add('quota')
            return GoalRoute(
                status=Status.QUOTA, text=refused.text, retry_after_s=refused.retry_after_s
            )
        try:
            placement, replica = core.place_goal(
                RecordIds(client_id, header.session_epoch, header.seq, episode_id)
            )
        except NoSlotAvailable as unavailable:
            return GoalRoute(status=unavailable.status, text=str(unavailable))
        has_moved = placement.moved and not placement.sticky
        flags = Flag.POLICY_CHANGED if has_moved else Flag.NONE
        return GoalRoute(replica.name, placement.slot, flags)

    def charge(self, client_id: str, inference_ms: float) -> None:
        """Take the inference of a goal from the quotas of its client."""
        core = self._host.core
        if core:
            core.table.quotas.charge(client_id, inference_ms, core.now_ns)

    def refusal(self, slot: str, policy: str) -> str:
        """Return why a reply of a policy is withheld; empty when it is relayed."""
        core = self._host.core
        if core is None:
            return ''
        with core.table.lock:
            return core.dispatcher.placement.goal_refusal(slot, policy, core.now_ns)

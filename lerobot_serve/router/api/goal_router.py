# SPDX-License-Identifier: Apache-2.0
"""Choose the server of each PredictChunk goal, a request without a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lerobot_serve.router.api.messages import routing_decision
from lerobot_serve.router.placement.episode_placement import NoSlotAvailable
from lerobot_serve.router.runtime import RouterRuntime
from lerobot_serve.trace.format.records import RecordIds
from lerobot_serve.wire.header import Envelope
from lerobot_serve.wire.schema import Flag, Status


@dataclass(frozen=True, slots=True)
class GoalRoute:
    """The server of a goal and the flags of its chunk; without a server, the reason."""

    server: str = ''
    slot: str = ''
    flags: int = 0
    status: Status = Status.OK
    text: str = ''


class GoalHost(Protocol):
    """The node, as goals need it."""

    # None unless configured
    routing: RouterRuntime | None
    # a state of ServerStatus, and in words
    standing: tuple[int, str]

    def stamp(self) -> Any: ...


class GoalRouter:
    """The executor's thread, `refusal` any. `publish` publishes."""

    def __init__(self, host: GoalHost, publish: Callable[[Any], None]) -> None:
        self._host, self._publish = host, publish

    def choose(self, start: Envelope) -> GoalRoute:
        """Return the route of a goal; a new episode is placed by it."""
        routing = self._host.routing
        if routing is None or not routing.is_open:
            return GoalRoute(status=Status.DRAINING, text=f'not ready: {self._host.standing[1]}')
        header, client_id, episode_id = start
        request_id = f'{client_id}:{header.session_epoch}:{header.seq}'
        try:
            placement, replica = routing.core.place_goal(episode_id, request_id)
        except NoSlotAvailable as nowhere:
            status = Status.NO_SESSION if nowhere.is_gone else Status.NO_SLOT
            return GoalRoute(status=status, text=str(nowhere))
        if placement.sticky:
            return GoalRoute(replica.name, placement.slot)
        if routing.recorder:
            ids = RecordIds(client_id, header.session_epoch, header.seq, episode_id)
            routing.recorder.placed(ids, placement, replica.name, replica.report.policy)
        self._publish(
            routing_decision(
                placement,
                stamp=self._host.stamp(),
                client_id=client_id,
                episode_id=episode_id,
                policy=replica.report.policy,
                server=replica.name,
            )
        )
        flags = Flag.POLICY_CHANGED if placement.moved else Flag.NONE
        return GoalRoute(replica.name, placement.slot, flags)

    def refusal(self, slot: str, policy: str) -> str:
        """Return why a reply of that policy is withheld; empty when it is not."""
        routing = self._host.routing
        return routing.core.goal_refusal(slot, policy) if routing else ''

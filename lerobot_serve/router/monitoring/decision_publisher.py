# SPDX-License-Identifier: Apache-2.0
"""Publish each placement for operators; warn of clients without episode_id. Any thread."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.router.api.messages import routing_decision
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.trace.format.records import RecordIds
from lerobot_serve_interfaces.msg import RoutingDecision


class DecisionPublisher(RequestObserver):
    """See the module."""

    def __init__(
        self,
        publish: Callable[[RoutingDecision], None],
        drops: DropCounters,
        context: NodeContext,
    ) -> None:
        self._publish, self._drops, self._context = publish, drops, context
        self._has_warned = False

    def on_placed(
        self, request: InFlightRequest, placement: Placement, server: str, policy: str
    ) -> None:
        if placement.missing_episode_id:
            self._count_missing_episode_id(request.session.request.client_id)
        self.publish(request.ids, placement, server, policy)

    def publish(self, ids: RecordIds, placement: Placement, server: str, policy: str) -> None:
        """Publish the placement of a request or goal."""
        self._publish(routing_decision(ids, placement, server, policy, self._context.stamp()))

    def _count_missing_episode_id(self, client_id: str) -> None:
        self._drops.add('no_episode_id')
        if not self._has_warned:
            self._has_warned = True
            self._context.log_warning(
                f'{client_id!r} sends no episode_id: each request is placed separately and may '
                'reach another policy; set episode_id in every request'
            )

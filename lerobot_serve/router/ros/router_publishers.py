# SPDX-License-Identifier: Apache-2.0
"""Publishers of the router for operators, one for each message type. Any thread."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node

from lerobot_serve.ros import qos
from lerobot_serve.router.api.messages import RouterMessage
from lerobot_serve_interfaces.msg import (
    CanaryState,
    RouterState,
    RoutingDecision,
    ServerStatus,
    ShadowDivergence,
    ShadowSummary,
)


class RouterPublishers:
    """Publishers by message type; states are latched for late subscribers."""

    def __init__(self, node: Node) -> None:
        topics = (
            (ServerStatus, '~/status', qos.STATE),
            (RouterState, '~/state', qos.STATE),
            (RoutingDecision, '~/routing', qos.DECISIONS),
            (CanaryState, '~/canary', qos.STATE),
            (ShadowSummary, '~/shadow_summary', qos.STATE),
            (ShadowDivergence, '~/shadow_divergence', qos.DECISIONS),
            (DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS),
        )
        self._publishers = {
            kind: node.create_publisher(
                kind, name, profile, qos_overriding_options=qos.OVERRIDABLE
            )
            for kind, name, profile in topics
        }

    def publish(self, message: RouterMessage) -> None:
        """Publish a message on the topic of its type."""
        self._publishers[type(message)].publish(message)

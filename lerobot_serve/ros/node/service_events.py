# SPDX-License-Identifier: Apache-2.0
"""Publish the requests and responses of services as service events."""

from __future__ import annotations

from rclpy.node import Node
from rclpy.service import Service
from rclpy.service_introspection import ServiceIntrospectionState

from lerobot_serve.ros import qos


def enable_service_events(node: Node, service: Service) -> None:
    """
    Publish requests and responses on NAME/_service_event, the ROS 2 service introspection, so that
    a bag can record and replay them. Executor or main thread.
    """
    service.configure_introspection(
        node.get_clock(), qos.SERVICE_EVENTS, ServiceIntrospectionState.CONTENTS
    )

"""Services that tell on a topic what they were asked and what they answered."""

from __future__ import annotations

from rclpy.node import Node
from rclpy.service import Service
from rclpy.service_introspection import ServiceIntrospectionState

from lerobot_serve.ros import qos


def enable_service_events(node: Node, service: Service) -> None:
    """
    Publish requests and replies on NAME/_service_event, as ROS 2 does it, so that a bag holds them
    and can play them again. Executor or main thread.
    """
    service.configure_introspection(
        node.get_clock(), qos.SERVICE_EVENTS, ServiceIntrospectionState.CONTENTS
    )

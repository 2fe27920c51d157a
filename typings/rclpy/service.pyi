# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable
from typing import Any

from rclpy.clock import Clock
from rclpy.qos import QoSProfile
from rclpy.service_introspection import ServiceIntrospectionState

class Service:
    # a coroutine function, too, although rclpy's annotation has only functions
    callback: Callable[[Any, Any], Any]
    def configure_introspection(
        self,
        clock: Clock,
        service_event_qos_profile: QoSProfile,
        introspection_state: ServiceIntrospectionState,
    ) -> None: ...

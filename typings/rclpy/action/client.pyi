# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.task import Future

class ClientGoalHandle:
    accepted: bool
    status: int
    def cancel_goal_async(self) -> Future: ...
    def get_result_async(self) -> Future: ...

class ActionClient:
    def __init__(
        self,
        node: Node,
        action_type: type[Any],
        action_name: str,
        *,
        callback_group: CallbackGroup | None = ...,
        goal_service_qos_profile: QoSProfile = ...,
        result_service_qos_profile: QoSProfile = ...,
        cancel_service_qos_profile: QoSProfile = ...,
        feedback_sub_qos_profile: QoSProfile = ...,
        status_sub_qos_profile: QoSProfile = ...,
    ) -> None: ...
    def destroy(self) -> None: ...
    def send_goal_async(
        self, goal: Any, feedback_callback: Callable[[Any], None] | None = ...
    ) -> Future: ...
    def server_is_ready(self) -> bool: ...
    def wait_for_server(self, timeout_sec: float | None = ...) -> bool: ...

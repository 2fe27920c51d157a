# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable
from enum import Enum
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile

class GoalResponse(Enum):
    REJECT = 1
    ACCEPT = 2

class CancelResponse(Enum):
    REJECT = 1
    ACCEPT = 2

class ServerGoalHandle:
    @property
    def goal_id(self) -> Any: ...
    @property
    def is_active(self) -> bool: ...
    @property
    def is_cancel_requested(self) -> bool: ...
    @property
    def request(self) -> Any: ...
    @property
    def status(self) -> int: ...
    def abort(self) -> None: ...
    def canceled(self) -> None: ...
    def publish_feedback(self, feedback: Any) -> None: ...
    def succeed(self) -> None: ...

class ActionServer:
    _node: Node
    def __init__(
        self,
        node: Node,
        action_type: type[Any],
        action_name: str,
        execute_callback: Callable[[ServerGoalHandle], Any],
        *,
        callback_group: CallbackGroup | None = ...,
        goal_callback: Callable[[Any], Any] = ...,
        handle_accepted_callback: Callable[[ServerGoalHandle], None] = ...,
        cancel_callback: Callable[[ServerGoalHandle], Any] = ...,
        goal_service_qos_profile: QoSProfile = ...,
        result_service_qos_profile: QoSProfile = ...,
        cancel_service_qos_profile: QoSProfile = ...,
        feedback_pub_qos_profile: QoSProfile = ...,
        status_pub_qos_profile: QoSProfile = ...,
        result_timeout: int = ...,
    ) -> None: ...
    def destroy(self) -> None: ...

# SPDX-License-Identifier: Apache-2.0

from typing import Any, NamedTuple

from rclpy.callback_groups import CallbackGroup
from rclpy.service import Service

class LifecycleState(NamedTuple):
    label: str
    state_id: int

class LifecycleNodeMixin:
    _service_change_state: Service
    _state_machine: Any
    def __init__(
        self,
        *,
        enable_communication_interface: bool = ...,
        callback_group: CallbackGroup | None = ...,
    ) -> None: ...

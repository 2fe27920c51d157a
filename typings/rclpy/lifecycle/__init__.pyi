# SPDX-License-Identifier: Apache-2.0

from enum import Enum

from rclpy.lifecycle.node import LifecycleNodeMixin as LifecycleNodeMixin
from rclpy.lifecycle.node import LifecycleState as LifecycleState

class TransitionCallbackReturn(Enum):
    SUCCESS = ...
    FAILURE = ...
    ERROR = ...

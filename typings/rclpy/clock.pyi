# SPDX-License-Identifier: Apache-2.0

from enum import IntEnum

from rclpy.time import Time

class ClockType(IntEnum):
    UNINITIALIZED = 0
    ROS_TIME = 1
    SYSTEM_TIME = 2
    STEADY_TIME = 3

class Clock:
    def __init__(self, *, clock_type: ClockType = ...) -> None: ...
    def now(self) -> Time: ...

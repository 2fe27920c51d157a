# SPDX-License-Identifier: Apache-2.0

from typing import Any

from rclpy.duration import Duration

class Publisher:
    topic_name: str
    def publish(self, msg: Any) -> None: ...
    def get_subscription_count(self) -> int: ...
    def wait_for_all_acked(self, timeout: Duration = ...) -> bool: ...

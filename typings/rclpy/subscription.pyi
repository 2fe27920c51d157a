# SPDX-License-Identifier: Apache-2.0

from typing import Any

class Subscription:
    topic_name: str
    @property
    def handle(self) -> Any: ...
    def get_publisher_count(self) -> int: ...

# SPDX-License-Identifier: Apache-2.0

from typing import Any

class Time:
    @property
    def nanoseconds(self) -> int: ...
    def to_msg(self) -> Any: ...

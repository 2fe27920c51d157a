# SPDX-License-Identifier: Apache-2.0
"""What parts of the router use of their node. Plain; any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from builtin_interfaces.msg import Time


@dataclass(frozen=True, slots=True)
class NodeContext:
    """
    name         full name of the node
    clock        monotonic nanoseconds
    stamp        the present, as messages have it
    local_time   the present, as people read it; never measured or compared
    log_warning  for operators
    log_info     for what went well
    """

    name: str
    clock: Callable[[], int]
    stamp: Callable[[], Time]
    local_time: Callable[[], str]
    log_warning: Callable[[str], None]
    log_info: Callable[[str], None]

# SPDX-License-Identifier: Apache-2.0
"""The services of the node for the parts of the router: name, clocks, logs. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from builtin_interfaces.msg import Time


def format_local_time() -> str:
    """Return date and time of day with the offset, for example 2026-11-20 14:03:09+01:00."""
    return datetime.now().astimezone().isoformat(' ', 'seconds')


def no_wait(why: str, seconds: float) -> bool:
    """Give up at once."""
    return True


@dataclass(frozen=True, slots=True)
class NodeContext:
    """
    name         full name of the node
    clock        monotonic nanoseconds
    stamp        current time for messages
    local_time   current local time for texts; never measured or compared
    log_warning  logs a warning for operators
    log_info     logs an information for operators
    wait         says why, and waits for so many seconds; returns whether the caller gives up
    """

    name: str
    clock: Callable[[], int]
    stamp: Callable[[], Time]
    local_time: Callable[[], str]
    log_warning: Callable[[str], None]
    log_info: Callable[[str], None]
    wait: Callable[[str, float], bool] = no_wait

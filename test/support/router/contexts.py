# SPDX-License-Identifier: Apache-2.0
"""Contexts of a node whose clock is that of a rig."""

from __future__ import annotations

from typing import Protocol

from builtin_interfaces.msg import Time

from lerobot_serve.router.context import NodeContext


class Clock(Protocol):
    """A rig; `now_ns` is its time."""

    now_ns: int


def make_context(
    rig: Clock,
    warned: list[str] | None = None,
    informed: list[str] | None = None,
    name: str = '/policy_router',
) -> NodeContext:
    """Return a context that appends log lines to the lists."""
    return NodeContext(
        name,
        clock=lambda: rig.now_ns,
        stamp=Time,
        local_time=lambda: 'before',
        log_warning=[].append if warned is None else warned.append,
        log_info=[].append if informed is None else informed.append,
    )

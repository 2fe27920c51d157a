# SPDX-License-Identifier: Apache-2.0
"""Episodes at a router core, whose outcomes are reported."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from support.router.dispatch_rig import request_bytes
from support.router.router_core_rig import RoutingRig

SUCCESS, FAILURE = 1, 2
ROBOT = 'robot'
NUMBERS = count(1)


def request(rig: RoutingRig, name: str) -> str:
    """Let a robot request a chunk of an episode; return its slot."""
    if rig.core.table.sessions.find(ROBOT, 1) is None:
        rig.robot(ROBOT)
    raw = request_bytes(ROBOT, next(NUMBERS), name)
    rig.core.dispatcher.on_request(raw, rig.now_ns)
    return rig.core.table.placements.find(name).slot


def run_episodes(
    rig: RoutingRig, number: int, success: Callable[[str], bool], start: int = 0
) -> None:
    """Run whole episodes, whose outcome depends on their slot."""
    for name in (f'{rig.name} {index}' for index in range(start, start + number)):
        rig.core.record_outcome(name, SUCCESS if success(request(rig, name)) else FAILURE)


def accept(rig: RoutingRig, name: str, outcome: int) -> str:
    """Report an outcome; return why it is not accepted, empty when it is and is durable."""
    receipt = rig.core.record_outcome(name, outcome)
    if not receipt.is_accepted:
        return receipt.text
    problems: list[str] = []
    rig.core.writer.when_durable(problems.append)
    return problems[0]

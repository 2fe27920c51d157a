# SPDX-License-Identifier: Apache-2.0
"""The robots of a fleet as a table, the worst first. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lerobot_serve.contract.records import EdgeState
from lerobot_serve.tools.operate.fleet_state import RobotView, shown, SILENT
from lerobot_serve.tools.operate.names import natural_order
from lerobot_serve.tools.output.report import Report, Table

# a state of a newer edge
UNKNOWN_SEVERITY = 1
# worst first: a robot of which nothing is known now, one that needs an operator, one without
# actions, one that moves
SEVERITY = {
    SILENT: -1,
    'DEAD': 0,
    'STALLED': 2,
    'RECONNECTING': 3,
    'CONNECTING': 4,
    'DEGRADED': 5,
    'STREAMING': 6,
}
# of the rung; one that only an operator lifts comes before every state
STOPPED_RUNGS = (EdgeState.Rung.STOP_SERVICE, EdgeState.Rung.NO_COMMAND)
MOVING_RUNG = EdgeState.Rung.POLICY
HEADS = ('ROBOT', 'STATE', 'RUNG', 'SLOT', 'POLICY', 'EPISODE', 'QUEUE', 'ROUND TRIP', 'REASON')

# of EdgeState, in the order of JSON
FIELDS = (
    *('client_id', 'state', 'rung', 'paused', 'intervention', 'reason', 'server', 'slot'),
    *('policy', 'episode_id', 'task', 'queue_remaining_s', 'action_age_s', 'round_trip_ms'),
    *('stalls', 'cage_trips'),
)
# measured values of a robot, which are old when it is silent
MEASURED = ('queue_remaining_s', 'action_age_s', 'round_trip_ms')


def severity(robot: RobotView) -> tuple[object, ...]:
    """
    Return the sort key, worst first: silent, stopped by a rung, state, not on the policy, stalls,
    name.
    """
    return (
        not robot.is_silent,
        not is_stopped(robot),
        SEVERITY.get(robot.state, UNKNOWN_SEVERITY),
        robot.edge.rung == MOVING_RUNG,
        -(robot.edge.stalls + robot.edge.cage_trips),
        natural_order(robot.name),
    )


def is_stopped(robot: RobotView) -> bool:
    """Return whether only an operator lifts what stops it; one that is paused has no fault."""
    return robot.edge.rung in STOPPED_RUNGS and not robot.edge.paused and not robot.is_silent


def worst_first(robots: Iterable[RobotView]) -> list[RobotView]:
    """Return the robots in the order in which an operator looks at them."""
    return sorted(robots, key=severity)


def robots_report(robots: Iterable[RobotView]) -> Report:
    """Return the table and the counts, worst first; what is measured is null of a silent robot."""
    ordered = worst_first(robots)
    table = Table(HEADS, [_row(robot) for robot in ordered])
    return Report({'robots': [_object(each) for each in ordered]}, [table, _counts(ordered)])


def _object(robot: RobotView) -> dict[str, Any]:
    found = {'name': robot.name, 'node': robot.node, **shown(robot.edge, *FIELDS)}
    found |= {'state': robot.state, 'age_s': robot.age_s}
    return found | dict.fromkeys((*MEASURED, 'rung')) if robot.is_silent else found


def _row(robot: RobotView) -> tuple[str, ...]:
    is_silent = robot.is_silent
    return (
        robot.name,
        _state(robot),
        '-' if is_silent else robot.edge.rung.word,
        robot.edge.slot or '-',
        robot.edge.policy or '-',
        robot.edge.episode_id or '-',
        '-' if is_silent else f'{robot.edge.queue_remaining_s:.1f} s',
        '-' if is_silent else f'{robot.edge.round_trip_ms:.0f} ms',
        robot.edge.reason,
    )


def _state(robot: RobotView) -> str:
    if robot.is_silent:
        return robot.state
    if robot.edge.paused:
        return f'{robot.state} (paused)'
    if is_stopped(robot):
        return f'{robot.state} (stopped)'
    return (
        robot.state
        if robot.edge.intervention is EdgeState.Intervention.NONE
        else f'{robot.state} (taken over)'
    )


def _counts(robots: Sequence[RobotView]) -> str:
    counts = Counter(map(_state, robots))
    parts = [f'{count} {state}' for state, count in counts.items()]
    return f'{len(robots)} robots: {", ".join(parts)}'

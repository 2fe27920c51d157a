# SPDX-License-Identifier: Apache-2.0
"""The row of a robot in the document. Pure."""

from __future__ import annotations

from lerobot_serve.tools.dashboard.document.merge_patch import Json, without_nulls
from lerobot_serve.tools.dashboard.document.printed_numbers import bounded, rounded, whole
from lerobot_serve.tools.dashboard.document.rows.edge_state import EdgeSample
from lerobot_serve.tools.operate.fleet_state import RobotView
from lerobot_serve.tools.operate.robots.fleet_table import (
    is_stopped,
    MOVING_RUNG,
    SEVERITY,
    UNKNOWN_SEVERITY,
)

SILENT_RANK, STOPPED_RANK, FIRST_RANK = 0, 1, 2
# change with every message; a row takes them at most once per NOISY_PERIOD_S
NOISY = ('queue_s', 'action_age_s', 'round_trip_ms', 'network_ms')


def robot_row(sample: EdgeSample, action_age_limit_s: float | None) -> Json:
    """Return the row of a robot that is heard of."""
    robot, edge = sample.robot, sample.robot.edge
    return without_nulls(
        {
            'name': robot.name,
            'client_id': edge.client_id,
            'state': robot.state,
            'rung': edge.rung.name,
            'paused': edge.paused,
            'intervention': edge.intervention.name,
            'stopped': is_stopped(robot),
            'reason': bounded(edge.reason),
            'server': edge.server,
            'slot': edge.slot,
            'policy': edge.policy,
            'episode_id': edge.episode_id,
            'task': bounded(edge.task),
            'action_age_limit_s': action_age_limit_s,
            **noisy_numbers(sample),
            'stalls': edge.stalls,
            'cage_trips': edge.cage_trips,
            'rank': rank(robot),
        }
    )


def noisy_numbers(sample: EdgeSample) -> Json:
    """Return what changes with each message; None for what is no number."""
    return {
        'queue_s': rounded(sample.queue_s, 1),
        'action_age_s': rounded(sample.action_age_s, 1),
        'round_trip_ms': whole(sample.round_trip_ms),
        'network_ms': whole(sample.network_ms),
    }


def with_new_numbers(row: Json, sample: EdgeSample) -> Json:
    """Return a row with the noisy numbers of a sample."""
    return without_nulls({**row, **noisy_numbers(sample)})


def with_old_numbers(row: Json, before: Json) -> Json:
    """Return a row with the noisy numbers of the one before."""
    kept = {key: value for key, value in row.items() if key not in NOISY}
    return kept | {key: before[key] for key in NOISY if key in before}


def rank(robot: RobotView) -> int:
    """Return the place among the robots, 0 the worst: the order of `lerobot-serve robots`."""
    if is_stopped(robot):
        return STOPPED_RANK
    severity = SEVERITY.get(robot.state, UNKNOWN_SEVERITY)
    return FIRST_RANK + 2 * severity + (robot.edge.rung is MOVING_RUNG)


def silent_row(row: Json, silent_since_ms: int) -> Json:
    """
    Return the row of a robot that is not heard of any more: the first one, without what it
    measured. Its texts are the last ones.
    """
    known = {key: value for key, value in row.items() if key not in NOISY}
    return known | {'rank': SILENT_RANK, 'silent_since_ms': silent_since_ms}

# SPDX-License-Identifier: Apache-2.0
"""
Check the chunks of a shadow against the limits of a robot's safety cage.

A session request carries the limits. Lead, interlocks and latch depend on the measured position
and are not checked. Owned by the thread `shadow`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.cage import limits_encoding
from lerobot_serve.cage.description import LastCommand
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.services.session import extension_bytes

# above the rounding of float32
ROUNDING = 1e-6
# a larger number of control steps per row is invalid
MAX_STEPS_PER_ROW = 100


@dataclass(frozen=True, slots=True, eq=False)
class RemoteCage:
    """The limits of a robot, and its control steps per row of a chunk."""

    limits: MotionLimits
    steps_a_row: int = 1


class RemoteCages:
    """The cages of up to `capacity` robots; beyond it the oldest session is removed."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._cages: OrderedDict[str, RemoteCage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cages)

    def update_limits(self, session_request: OpenSessionRequest) -> str:
        """
        Replace the limits of a robot with those of a session request; return why they are
        unusable, empty for usable limits or none.
        """
        self._cages.pop(session_request.client_id, None)
        data = extension_bytes(session_request.extensions, limits_encoding.EXTENSION_KEY)
        if data is None:
            return ''
        try:
            self._cages[session_request.client_id] = make_remote_cage(
                limits_encoding.decode_limits(data),
                session_request.action_names,
                session_request.fps,
            )
        except ValueError as error:
            return str(error)
        if len(self._cages) > self._capacity:
            self._cages.popitem(last=False)
        return ''

    def of(self, client_id: str, columns: int) -> RemoteCage | None:
        """Return the cage of a robot; None if unknown or for another number of actions."""
        cage = self._cages.get(client_id)
        return cage if cage and len(cage.limits.names) == columns else None


def make_remote_cage(
    limits: MotionLimits, action_names: tuple[str, ...], fps: float
) -> RemoteCage:
    """Return the cage of a session with these actions and rows. Raises ValueError."""
    if limits.names != action_names:
        raise ValueError(f'limits are for {list(limits.names)}, actions are {list(action_names)}')
    share = fps * limits.step_s
    # fps is transferred as float32
    if not 1 / MAX_STEPS_PER_ROW - 1e-3 <= share <= 1.001:
        raise ValueError(
            f'limits: a control step of {limits.step_s:g} s must be a part of a row; fps is '
            f'{fps:g}'
        )
    return RemoteCage(limits, round(1 / share))


def would_trip(
    cage: RemoteCage | None, before: Float32Array, rows: Float32Array, gaps: list[int]
) -> bool:
    """
    Return whether the cage would change one of these rows. Without a cage only non-finite values
    trip.

    `before` are up to two rows commanded directly before the first one; `gaps` are the indices of
    rows that do not directly follow the row before them.
    """
    rows = rows.astype(np.float64)
    if not np.isfinite(rows).all():
        return True
    if cage is None:
        return False
    if before.shape[1] != rows.shape[1] or not np.isfinite(before).all():
        before = before[:0]
    stretches = np.split(rows, gaps)
    return _trips(cage, before[-2:], stretches[0]) or any(
        _trips(cage, before[:0], stretch) for stretch in stretches[1:]
    )


def _trips(cage: RemoteCage, before: Float32Array, rows: Float32Array) -> bool:
    """
    Return whether the cage would change one of the commands that interpolate these rows.

    Up to the first change each command equals the wanted one, so that all are checked at once. An
    unknown initial velocity is taken from the first rows.
    """
    limits, steps = cage.limits, cage.steps_a_row
    begin = before[-1:] if len(before) else rows[:1]
    ends = np.concatenate((begin, rows[:-1])).astype(np.float64)
    strides = (rows - ends) / steps
    earlier = np.concatenate((strides[:1], strides[:-1]))
    if len(before) == 2:
        earlier[0] = (before[1].astype(np.float64) - before[0]) / steps
    elif not len(before):
        # the robot is assumed to be at the first row
        earlier[1:2] = strides[1:2]
    here = ends[:, None] + strides[:, None] * np.arange(steps)[:, None]
    changes = np.repeat(strides[:, None], steps, 1)
    changes[:, 0] = earlier
    wanted = here + strides[:, None]
    with np.errstate(all='ignore'):
        last = LastCommand(here, changes / limits.step_s)
        command = limits.nearest(wanted, last, None, allow_return=True)
        # negated, so that NaN trips
        return not (abs(command - wanted) <= ROUNDING * np.maximum(1, abs(wanted))).all()

# SPDX-License-Identifier: Apache-2.0
"""
Check the commands of a shadow against the limits of a robot's safety cage.

A session carries the limits, but not the measured position: the lead of a command, interlocks and
the latch are not checked. Owned by the thread `shadow`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.cage import limits_encoding
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.result import LastCommand
from lerobot_serve.wire.session import SessionRequest

# what float32 does to a number on its way, and more
ROUNDING = 1e-6
# more commands between two rows are taken for a mistake
MAX_STEPS_PER_ROW = 100


@dataclass(frozen=True, slots=True, eq=False)
class RemoteCage:
    """A robot's limits, and how often it is commanded for each row of its policy."""

    limits: MotionLimits
    steps_a_row: int = 1


class RemoteCages:
    """Of up to `capacity` robots; the one that opened its session first is forgotten."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._cages: OrderedDict[str, RemoteCage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cages)

    def learn(self, ask: SessionRequest) -> str:
        """
        Take the limits of a robot in place of those it had; return why they cannot be used, empty
        when they can or when it tells none.
        """
        self._cages.pop(ask.client_id, None)
        data = dict(ask.extensions).get(limits_encoding.EXTENSION_KEY)
        if data is None:
            return ''
        try:
            self._cages[ask.client_id] = make_remote_cage(ask, limits_encoding.decode_limits(data))
        except ValueError as error:
            return str(error)
        if len(self._cages) > self._capacity:
            self._cages.popitem(last=False)
        return ''

    def of(self, client_id: str, columns: int) -> RemoteCage | None:
        """Return what is known of a robot of so many actions."""
        cage = self._cages.get(client_id)
        return cage if cage and len(cage.limits.names) == columns else None


def make_remote_cage(ask: SessionRequest, limits: MotionLimits) -> RemoteCage:
    """Return the cage of a robot that asks like this. Raises ValueError."""
    if limits.names != ask.action_names:
        raise ValueError(
            f'limits are for {list(limits.names)}, actions are {list(ask.action_names)}'
        )
    share = ask.fps * limits.step_s
    # fps comes as float32
    if not 1 / MAX_STEPS_PER_ROW - 1e-3 <= share <= 1.001:
        raise ValueError(
            f'limits: a control step of {limits.step_s:g} s must be a part of a row, of which '
            f'there are {ask.fps:g} a second'
        )
    return RemoteCage(limits, round(1 / share))


def would_trip(
    cage: RemoteCage | None, before: Float32Array, rows: Float32Array, gaps: list[int]
) -> bool:
    """
    Return whether the cage would have changed one of these rows. Without a cage only values that
    are not finite trip.

    `before` are up to two rows commanded right before the first one; before the rows at the
    indices `gaps` something else was commanded.
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
    Return whether the cage would change one of the commands that lead through these rows.

    Up to the first that it changes, each follows the one wanted before it: so all can be asked at
    once. Where it is not known how fast the robot was, it was as fast as the rows begin.
    """
    limits, steps = cage.limits, cage.steps_a_row
    begin = before[-1:] if len(before) else rows[:1]
    ends = np.concatenate((begin, rows[:-1])).astype(np.float64)
    strides = (rows - ends) / steps
    earlier = np.concatenate((strides[:1], strides[:-1]))
    if len(before) == 2:
        earlier[0] = (before[1].astype(np.float64) - before[0]) / steps
    elif not len(before):
        # the first row is where the robot is taken to be
        earlier[1:2] = strides[1:2]
    here = ends[:, None] + strides[:, None] * np.arange(steps)[:, None]
    changes = np.repeat(strides[:, None], steps, 1)
    changes[:, 0] = earlier
    wanted = here + strides[:, None]
    with np.errstate(all='ignore'):
        last = LastCommand(here, changes / limits.step_s)
        command = limits.nearest(wanted, last, None, allow_return=True)
        # written so that what is no number trips
        return not (abs(command - wanted) <= ROUNDING * np.maximum(1, abs(wanted))).all()

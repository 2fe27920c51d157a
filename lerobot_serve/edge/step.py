"""What a control step is given and what comes of it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lerobot_serve.cage.judgement import Judgement
from lerobot_serve.edge.ladder import Decision
from lerobot_serve.edge.queue.actions import Planned


class Sensed(NamedTuple):
    """
    What the inputs say of the robot now, and of what its actions move; None: not known.
    `arrived_ns` is when each message came.
    """

    state: np.ndarray | None = None
    measured: np.ndarray | None = None
    arrived_ns: tuple[int, ...] = ()


class Timing(NamedTuple):
    """`max_blind_ns`: how long a robot may move on without being measured."""

    step_ns: int
    max_action_age_ns: int
    max_blind_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """What one step commands and why; `planned` is None where a rung of the ladder commands."""

    planned: Planned | None
    decision: Decision
    judgement: Judgement
    age_ns: int

"""What a control step is given and what comes of it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lerobot_serve.cage.result import CageResult
from lerobot_serve.edge.fallback.ladder import LadderDecision
from lerobot_serve.edge.queue.action_queue import QueuedAction


class RobotState(NamedTuple):
    """
    What the inputs say of the robot now, and of what its actions move; None: not known.
    `arrived_ns` is when each message came.
    """

    state: np.ndarray | None = None
    measured: np.ndarray | None = None
    arrived_ns: tuple[int, ...] = ()


class StepTiming(NamedTuple):
    """`max_blind_ns`: how long a robot may move on without being measured."""

    step_ns: int
    max_action_age_ns: int
    max_blind_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedStep:
    """What one step commands and why; `planned` is None where a rung of the ladder commands."""

    planned: QueuedAction | None
    decision: LadderDecision
    judgement: CageResult
    age_ns: int

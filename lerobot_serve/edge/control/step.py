# SPDX-License-Identifier: Apache-2.0
"""Input, timing and result of a control step. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lerobot_serve.cage.result import CageResult
from lerobot_serve.edge.fallback.ladder import LadderDecision
from lerobot_serve.edge.queue.action_queue import QueuedAction


class RobotState(NamedTuple):
    """
    Current state values, and the measured position of each action; None: unknown. `arrived_ns` is
    the arrival time of each message.
    """

    state: np.ndarray | None = None
    measured: np.ndarray | None = None
    arrived_ns: tuple[int, ...] = ()


class StepTiming(NamedTuple):
    """`max_blind_ns`: how long a robot may move without measurement."""

    step_ns: int
    max_action_age_ns: int
    max_blind_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedStep:
    """The command of one step and its reason; `planned` is None for a rung of the ladder."""

    planned: QueuedAction | None
    decision: LadderDecision
    judgement: CageResult
    age_ns: int

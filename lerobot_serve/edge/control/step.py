# SPDX-License-Identifier: Apache-2.0
"""Settings and result of a control step. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lerobot_serve.cage.result import CageResult
from lerobot_serve.edge.fallback.ladder import LadderDecision
from lerobot_serve.edge.queue.action_queue import QueuedAction


class StepSettings(NamedTuple):
    """`is_silent_while_paused`: a paused robot sends no commands."""

    step_ns: int
    is_silent_while_paused: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedStep:
    """The command of one step and its reason; `planned` is None for a rung of the ladder."""

    planned: QueuedAction | None
    decision: LadderDecision
    judgement: CageResult
    age_ns: int

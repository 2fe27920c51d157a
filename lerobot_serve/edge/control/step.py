# SPDX-License-Identifier: Apache-2.0
"""Settings and result of a control step. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.result import CageResult
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.fallback.ladder import LadderDecision
from lerobot_serve.edge.queue.action_queue import QueuedAction


class StepSettings(NamedTuple):
    """`is_silent_while_paused`: a paused robot sends no commands."""

    step_ns: int
    is_silent_while_paused: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedStep:
    """
    The command of one step and its reason; `planned` is None unless the policy commands.

    source         the part that commands
    policy_action  the action of the policy that a person's command replaces
    input_ids      the newest message of each input, see LatestInputs.ids
    """

    planned: QueuedAction | None
    decision: LadderDecision
    judgement: CageResult
    age_ns: int
    source: ControlAuthority = ControlAuthority.POLICY
    policy_action: Float64Array | None = None
    input_ids: tuple[int, ...] = ()

# SPDX-License-Identifier: Apache-2.0
"""
Settings and result of a control step. Plain data.

Limits commands to one per control step, by the clock.

Limits bound each command as one control step. After a delayed tick the next one follows almost at
once: two full steps within a millisecond. So a tick earlier than half a step before its due time
is skipped. In any window the commands after the first are at most the steps of the
window and half a step more; for a joint that is max_velocity times the window and half a step.
Plain; the tick thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import CageResult
from lerobot_serve.edge.action_queue import QueuedAction
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.ladder import LadderDecision


class CommandRateLimiter:
    """Tracks the due time of the next command."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Return whether a command may be sent now, and count it as sent."""
        due_ns = now_ns if self._due_ns is None else self._due_ns
        if now_ns < due_ns - self._step_ns // 2:
            return False
        self._due_ns = max(now_ns, due_ns) + self._step_ns
        return True


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

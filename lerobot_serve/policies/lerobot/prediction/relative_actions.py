# SPDX-License-Identifier: Apache-2.0
"""
Re-anchor a prefix of relative actions to the state of the request.

A policy with relative actions predicts differences from the state of its observation. So the
prefix is sent in the robot's units and converted to differences from the current state, by the
same steps as in training: the step that makes actions relative, then the normalizer. LeRobot's own
loop converts the prefix in the same way. Inference thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lerobot_serve.policies.lerobot.checkpoint.features import STATE
from lerobot_serve.policies.lerobot.compat import lerobot

# LeRobot's names of the step that makes actions relative in training, and of the normalizer
RELATIVE_STEP, NORMALIZER_STEP = 'relative_actions_processor', 'normalizer_processor'
# relative tolerance; float32 has seven digits
TOLERANCE = 1e-3


class PrefixReanchorer:
    """The preprocessor steps of a session that re-anchor a prefix. They may raise any error."""

    def __init__(self, relative: Any, normalizer: Any | None) -> None:
        self._relative, self._normalizer = relative, normalizer

    def reanchor_prefix(self, robot: torch.Tensor) -> torch.Tensor:
        """
        Return rows of absolute actions in model space, relative to the last state that the
        preprocessor processed.
        """
        parts = lerobot()
        state = self._relative.get_cached_state()
        # the normalizer moves its statistics to the device of its input and leaves them there
        robot = robot.to(state.device)
        transition = parts.create_transition(observation={STATE: state}, action=robot)
        action: torch.Tensor = self._relative(transition)[parts.transition_key.ACTION]
        if self._normalizer is not None:
            action = action.to(statistics_device(self._normalizer, action.device))
            normalized = self._normalizer(parts.create_transition(action=action))
            action = normalized[parts.transition_key.ACTION]
        return action


def find_reanchorer(steps: Iterable[Any]) -> PrefixReanchorer | None:
    """Return the re-anchoring for the steps of a preprocessor; None if not supported."""
    named = {getattr(type(step), '_registry_name', ''): step for step in steps}
    relative = named.get(RELATIVE_STEP)
    if relative is None or not getattr(relative, 'enabled', False):
        return None
    return PrefixReanchorer(relative, named.get(NORMALIZER_STEP))


def statistics_device(normalizer: Any, default: torch.device) -> torch.device:
    """Return the device of a normalizer."""
    for values in normalizer._tensor_stats.values():
        for value in values.values():
            device: torch.device = value.device
            return device
    return default


def can_reanchor(reanchorer: PrefixReanchorer, model: torch.Tensor, robot: torch.Tensor) -> bool:
    """
    Return whether re-anchoring a chunk at its own state returns the same chunk.

    If not, a step in between changes actions in a way that re-anchoring does not invert.
    """
    again = reanchorer.reanchor_prefix(robot).to(model.device)
    if again.shape != model.shape:
        return False
    is_close: bool = torch.allclose(again, model, rtol=TOLERANCE, atol=TOLERANCE)
    return is_close

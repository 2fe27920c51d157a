# SPDX-License-Identifier: Apache-2.0
"""
Actions relative to a state: one step notes it on the way in, the other adds it on the way out.

LeRobot must be importable. Importing this registers both.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lerobot.processor import ObservationProcessorStep, PolicyActionProcessorStep
from lerobot.processor.pipeline import ProcessorStepRegistry
import torch


@ProcessorStepRegistry.register('test_relative_state')
class RelativeState(ObservationProcessorStep):
    """Remembers the last state of its session, in the robot's units."""

    loaded: ClassVar[RelativeState | None] = None

    def __init__(self) -> None:
        self.state: torch.Tensor | None = None
        RelativeState.loaded = self

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        self.state = observation['observation.state'].clone()
        return observation

    def transform_features(self, features: Any) -> Any:
        return features


@ProcessorStepRegistry.register('test_relative_action')
class RelativeAction(PolicyActionProcessorStep):
    """
    Adds the state that the step on the way in remembers.

    LeRobot loads the way in first, so its step is there when this one is made. From then on they
    belong together: a copy of both pipelines at once has a pair of its own.
    """

    def __init__(self) -> None:
        self.origin = RelativeState.loaded

    def action(self, action: torch.Tensor) -> torch.Tensor:
        state = self.origin.state.to(action.device)
        return action + (state.unsqueeze(1) if action.ndim == 3 else state)

    def transform_features(self, features: Any) -> Any:
        return features

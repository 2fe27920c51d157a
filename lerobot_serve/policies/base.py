"""
What the server asks of a policy.

A policy is described once, then answers batches of requests. One thread, the inference worker,
calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lerobot_serve.wire.content import NO_ACTIONS
from lerobot_serve.wire.schema import StateClass


class PolicyError(Exception):
    """A policy that cannot be loaded or used; the text says what was given and what to do."""


@dataclass(frozen=True, slots=True)
class Camera:
    """One camera that a policy wants."""

    name: str
    height: int
    width: int
    channels: int = 3


@dataclass(frozen=True, slots=True)
class Description:
    """What a policy expects and gives; the server checks every session against it."""

    policy_type: str
    fingerprint: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[Camera, ...]
    chunk_size: int
    trained_fps: float
    state_class: StateClass = StateClass.CHUNK_STATELESS
    supports_rtc: bool = False
    observation_steps: int = 1
    observation_stride_steps: int = 1
    device: str = 'cpu'


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRequest:
    """
    One decoded observation.

    `state` is observation_steps x state values; `images` maps a camera's name to height x width x
    channels, RGB.
    """

    session_id: str
    state: np.ndarray
    images: dict[str, np.ndarray] = field(default_factory=dict)
    task: str = ''
    prefix_model: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
    prefix_robot: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
    inference_delay_steps: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """One chunk, rows x actions, as the policy produced it and in the robot's units."""

    model: np.ndarray
    robot: np.ndarray


class Policy(Protocol):
    """
    The interface; the entry point `lerobot_serve.policies` names a function `load(path, device) ->
    Policy`.
    """

    def describe(self) -> Description:
        """Return what the policy expects and gives; the same object for its whole life."""

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """
        Return one prediction for each request, in order. May raise; the server answers for it.
        """

    def reset(self, session_id: str) -> None:
        """Forget what is remembered of one session; nothing to do for a policy without state."""

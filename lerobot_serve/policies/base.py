"""
What the server asks of a policy.

A policy is loaded and described once, then answers batches of requests. One thread, the inference
worker, does all of that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lerobot_serve.wire.action_range import ActionRange
from lerobot_serve.wire.message_parts import NO_ACTIONS
from lerobot_serve.wire.schema import StateClass


class PolicyError(Exception):
    """A policy that cannot be loaded or used; the text says what was given and what to do."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """
    What the operator says of a policy before it is loaded.

    Names and rate are for policies whose files do not hold them; `name` stands before the @ of the
    fingerprint, empty for the policy's own; `cpu_threads` 0 leaves them to torch;
    `memory_margin_bytes` is what the policy needs beside its weights; `state_limit` is how many
    sessions a recurrent policy remembers; `dtype` is the precision of its numbers, empty for the
    policy's own; `trusted_packages` are installed packages whose types of policy and processor
    steps LeRobot may load.
    """

    path: str = ''
    device: str = 'cpu'
    name: str = ''
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    trained_fps: float = 0.0
    allow_missing_statistics: bool = False
    cpu_threads: int = 0
    memory_margin_bytes: int = 0
    state_limit: int = 64
    dtype: str = ''
    trusted_packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyCamera:
    """One camera that a policy wants."""

    name: str
    height: int
    width: int
    channels: int = 3


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """
    What a policy expects and gives; the server checks every session against it.

    `observation_steps` of the past, `observation_stride_steps` control steps apart, come with each
    request. A `stochastic` policy draws random numbers, all of them from the request's seed. No
    more than `batch_limit` requests are predicted together (0: any number). A chunk takes so many
    `denoise_steps`, 0 where there are none. `notes` are what an operator should know; every
    session hears them. `action_range` is that of the training data in the units of `Prediction.
    robot`, None where it is not known or actions are relative.
    """

    policy_type: str
    fingerprint: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[PolicyCamera, ...]
    chunk_size: int
    trained_fps: float
    state_class: StateClass = StateClass.CHUNK_STATELESS
    supports_rtc: bool = False
    observation_steps: int = 1
    observation_stride_steps: int = 1
    device: str = 'cpu'
    stochastic: bool = False
    batch_limit: int = 0
    denoise_steps: int = 0
    notes: tuple[str, ...] = ()
    action_range: ActionRange | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRequest:
    """
    One decoded observation.

    `state` is observation_steps x state values; `images` maps a camera's name to as many frames of
    height x width x channels, RGB; the oldest come first, the present last. Hidden state belongs
    to `session_id` and `episode`: a request with `episode_start`, or of another episode than the
    last, begins anew.
    """

    session_id: str
    state: np.ndarray
    images: dict[str, tuple[np.ndarray, ...]] = field(default_factory=dict)
    task: str = ''
    robot_type: str = ''
    episode: int = 0
    episode_start: bool = False
    prefix_model: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
    prefix_robot: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
    inference_delay_steps: int = 0
    execution_horizon: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """
    One chunk, rows x actions, as the policy produced it and in the robot's units.

    `state_lost`: the request went on with an episode whose hidden state is gone; `state_found`: it
    was there. `forward_ms` is the forward pass alone, when the policy knows it.
    """

    model: np.ndarray
    robot: np.ndarray
    state_lost: bool = False
    forward_ms: float | None = None
    state_found: bool = False


class Policy(Protocol):
    """
    The interface; an entry point of the group `lerobot_serve.policies` names a function
    `load(loading: Loading) -> Policy`, which raises PolicyError.
    """

    def describe(self) -> PolicyDescription:
        """Return what the policy expects and gives; the same object for its whole life."""

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """
        Return one prediction for each request, in order; no two are of one session.

        May raise; the server then asks for each request alone and answers for the one that fails.
        Hidden state changes only when this returns.
        """

    def reset(self, session_id: str) -> None:
        """Forget all that is remembered of one session, also of one never heard of."""

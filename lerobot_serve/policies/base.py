# SPDX-License-Identifier: Apache-2.0
"""
The interface of a policy: load options, description, requests and predictions.

A policy is loaded and described once, then predicts batches of requests. One thread, the inference
thread, does all of that, but for policies that set `any_thread`. One that replaces another policy
without a stop is loaded, described and warmed up by another thread before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from msgspec import field, Struct

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.contract.data_path.message_parts import NO_ACTIONS
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import StateClass
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.errors import UserError

# a camera that a policy needs, as policies of other packages name it
PolicyCamera = CameraSpec


class PolicyError(UserError):
    """A policy cannot be loaded or used; the text names what was given and the remedy."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """
    Options for loading a policy, from the parameters.

    Names and rate are used for policies whose files lack them; `name` is the part of the
    fingerprint before the @, empty for the policy's own; `cpu_threads` 0 leaves it to the policy;
    `memory_margin_bytes` is the memory required beside the weights; `state_limit` is the number of
    kept hidden states; `dtype` is the precision, empty for the policy's own; `trusted_packages`
    are installed packages from which LeRobot may load policy types and processor steps;
    `embedding_cache_bytes` is the limit of the cache of image embeddings, 0 for none.
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
    embedding_cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """
    Inputs and outputs of a policy; the server checks every session against it.

    Each request carries `observation_steps` observations, `observation_stride_steps` control steps
    apart. A `stochastic` policy draws random numbers, all of them from the request's seed. At most
    `batch_limit` requests are predicted together (0: no limit). `denoise_steps` is the number of
    denoising steps of a chunk, 0 for none. `notes` are warnings for the operator and every
    session. `action_range` is the range of the training data in the units of Prediction.robot;
    None if unknown or if actions are relative. `max_delay_steps` is the longest delay that the
    policy was trained for, 0 without a limit. A policy of `any_thread` predicts at once and may
    be called in any thread, by one at a time; the others are called in one thread, which owns
    their device. `embedding_cache_bytes` is the limit of its cache of image embeddings, 0 without.
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
    any_thread: bool = False
    max_delay_steps: int = 0
    embedding_cache_bytes: int = 0


class PolicyRequest(Struct, frozen=True, eq=False):
    """
    One decoded observation.

    `state` is observation_steps x state values; `images` maps a camera's name to observation_steps
    frames of height x width x channels, RGB, oldest first. Hidden state belongs to `session_id`
    and `episode`: a request with `episode_start`, or of another episode than the previous one,
    starts with a new state.
    """

    session_id: str
    state: Float32Array
    images: dict[str, tuple[FrameArray, ...]] = {}
    task: str = ''
    robot_type: str = ''
    episode: int = 0
    episode_start: bool = False
    prefix_model: Float32Array = field(default_factory=lambda: NO_ACTIONS)
    prefix_robot: Float32Array = field(default_factory=lambda: NO_ACTIONS)
    inference_delay_steps: int = 0
    execution_horizon: int = 0
    seed: int = 0


class Prediction(Struct, frozen=True, eq=False):
    """
    One chunk, rows x actions, as the policy produced it and in the robot's units.

    `state_lost`: the request continued an episode whose hidden state is missing; `state_found`: it
    was present. `forward_ms` is the time of the forward pass only, if the policy measures it.
    """

    model: Float32Array
    robot: Float32Array
    state_lost: bool = False
    forward_ms: float | None = None
    state_found: bool = False


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Camera images whose embedding was in the cache, and those that were embedded."""

    hits: int = 0
    misses: int = 0


class Policy(Protocol):
    """
    The interface; an entry point of the group `lerobot_serve.policies` names a function
    `load(options: LoadOptions) -> Policy`, which raises PolicyError.
    """

    def describe(self) -> PolicyDescription:
        """Return the description; the same object for the life of the policy."""

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """
        Return one prediction for each request, in order; no two are of one session.

        May raise; the server then predicts each request alone and sends an error for the bad one.
        Hidden state changes only when this returns.
        """

    def reset(self, session_id: str) -> None:
        """Discard the state of one session; unknown sessions are ignored."""


@runtime_checkable
class ClosablePolicy(Protocol):
    """A policy that holds threads or connections; others need no `close`."""

    def close(self) -> None:
        """End them; called once, by the thread that predicts."""


@runtime_checkable
class CachingPolicy(Protocol):
    """A policy with a cache of image embeddings; others need no `take_cache_counts`."""

    def take_cache_counts(self) -> CacheCounts:
        """Return the counts since the last call; called by the thread that predicts."""

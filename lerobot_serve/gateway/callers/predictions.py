# SPDX-License-Identifier: Apache-2.0
"""A request for actions, its prediction, and the errors. Checked at construction. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.contract.limits import ID_LIMIT, TASK_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.contract.schema import Refusal

# far above any robot, far below a harmful size
STATE_LIMIT, IMAGES_LIMIT, PIXELS_LIMIT = 4096, 64, 64_000_000
TIMEOUT_LIMIT_S = 3600.0
DELAY_STEPS_LIMIT = 10_000
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Status(StrEnum):
    """Why there is no prediction."""

    # the request cannot be read, or does not fit the policy
    INVALID = 'invalid'
    # the deadline of the request passed
    TOO_LATE = 'too_late'
    # a newer request of the same caller replaced it
    SUPERSEDED = 'superseded'
    # more callers or requests than allowed
    OVERLOADED = 'overloaded'
    # no server responds, or it is going away
    UNAVAILABLE = 'unavailable'
    # NaN or infinity in the actions
    NOT_FINITE = 'not_finite'
    # no token, or a wrong one
    UNAUTHORIZED = 'unauthorized'
    # the policy raised an error
    FAILED = 'failed'
    # the quota of the caller or of its group is used up
    QUOTA = 'quota'


# by HTTP, and by gRPC
CODES: Mapping[Status, tuple[int, str]] = {
    Status.INVALID: (400, 'INVALID_ARGUMENT'),
    Status.UNAUTHORIZED: (401, 'UNAUTHENTICATED'),
    Status.SUPERSEDED: (409, 'ABORTED'),
    Status.OVERLOADED: (429, 'RESOURCE_EXHAUSTED'),
    Status.QUOTA: (429, 'RESOURCE_EXHAUSTED'),
    Status.FAILED: (502, 'INTERNAL'),
    Status.NOT_FINITE: (502, 'INTERNAL'),
    Status.UNAVAILABLE: (503, 'UNAVAILABLE'),
    Status.TOO_LATE: (504, 'DEADLINE_EXCEEDED'),
}


class PredictionError(Exception):
    """
    No prediction: `status` for programs; the text has what was given, what is allowed and what to
    do. `retry_after_s` is 0 where a retry of the same request is useless or needs no pause;
    `refusal` is the server's code where it opened no session.
    """

    def __init__(
        self,
        status: Status,
        text: str,
        retry_after_s: float = 0.0,
        refusal: Refusal = Refusal.OK,
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.retry_after_s = status, text, retry_after_s
        self.refusal = refusal


@dataclass(frozen=True, slots=True, eq=False)
class PredictionRequest:
    """
    What a caller observes, in the names, order and units of the policy.

    state                  one value for each state name of the policy
    images                 RGB frames by the camera names of the policy, height x width x 3
    episode_id             empty: the current episode of the session
    episode_start          the caller began a new episode
    timeout_s              0: the default of the gateway; later predictions are TOO_LATE
    inference_delay_steps  control steps that pass before the first action is executed

    Raises PredictionError for what no policy accepts.
    """

    state: Float32Array
    images: Mapping[str, Uint8Array]
    task: str = ''
    episode_id: str = ''
    episode_start: bool = False
    timeout_s: float = 0.0
    inference_delay_steps: int = 0

    def __post_init__(self) -> None:
        _check_state(self.state)
        _check_images(self.images)
        if len(self.task.encode('utf-8', 'replace')) > TASK_LIMIT:
            raise invalid(f'task has {len(self.task)} characters, {TASK_LIMIT} bytes are allowed')
        if not is_printable(self.episode_id, ID_LIMIT):
            raise invalid(
                f'episode_id must be printable text of at most {ID_LIMIT} bytes, got '
                f'{self.episode_id[:80]!r}'
            )
        if not 0 <= self.timeout_s <= TIMEOUT_LIMIT_S:
            raise invalid(f'timeout_s must be in [0, {TIMEOUT_LIMIT_S:g}], got {self.timeout_s}')
        if not 0 <= self.inference_delay_steps <= DELAY_STEPS_LIMIT:
            raise invalid(
                f'inference_delay_steps must be in [0, {DELAY_STEPS_LIMIT}], got '
                f'{self.inference_delay_steps}'
            )

    def scoped(self, timeout_s: float, episode_id: str) -> PredictionRequest:
        """
        Return this request with another limit and the name of its episode at the router; what was
        checked is not checked again.
        """
        scoped = copy(self)
        object.__setattr__(scoped, 'timeout_s', timeout_s)
        object.__setattr__(scoped, 'episode_id', episode_id)
        return scoped


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """
    A chunk of actions, in the units of the robot: one row for each step, always finite.

    slot, policy, fingerprint  who answered; `policy` is the id in the fingerprint id@hash
    sequence                   number of the request in its session
    policy_changed             another policy answered than the one before
    episode_id                 name of the episode at the router, by which it is placed
    text                       what the server says about the chunk, empty as a rule
    superseded                 requests of the session that a newer one replaced at the server
    """

    actions: Float32Array
    slot: str = ''
    policy: str = ''
    fingerprint: str = ''
    sequence: int = 0
    inference_ms: float = 0.0
    queue_wait_ms: float = 0.0
    policy_changed: bool = False
    text: str = ''
    episode_id: str = ''
    processing_ms: float = 0.0
    superseded: int = 0

    def __post_init__(self) -> None:
        """Raise PredictionError for actions that must not be executed."""
        if self.actions.dtype != np.float32 or self.actions.ndim != 2 or not self.actions.size:
            raise PredictionError(
                Status.FAILED,
                f'the policy returned actions of shape {self.actions.shape} and type '
                f'{self.actions.dtype}, expected steps x actions of float32; see the log of the '
                'server',
            )
        if not np.isfinite(self.actions).all():
            raise PredictionError(
                Status.NOT_FINITE,
                'the policy returned NaN or infinity; no action is passed on; see the log of the '
                'server',
            )

    def as_reply(self) -> dict[str, Any]:
        """Return the fields of a reply beside the actions."""
        return {name: getattr(self, name) for name in TOLD}


# of a prediction, in the order in which callers read it
TOLD = (
    'slot',
    'policy',
    'fingerprint',
    'sequence',
    'inference_ms',
    'queue_wait_ms',
    'policy_changed',
    'episode_id',
    'text',
)


def as_state(values: object, name: str = 'state') -> Float32Array:
    """Return numbers as a state vector; arrays of any shape are flattened. Raises the error."""
    try:
        with np.errstate(over='ignore'):
            state = np.asarray(values, np.float32).reshape(-1)
        if not np.isfinite(state).all():
            _check_range(np.asarray(values, np.float64).reshape(-1), name)
        return state
    except (TypeError, ValueError, OverflowError):
        raise invalid(f'{name} must be numbers, got other values') from None


def _check_range(values: NDArray[np.float64], name: str) -> None:
    """Raise PredictionError for a finite number that is infinite as float32."""
    is_huge = np.isfinite(values) & (np.abs(values) > FLOAT32_MAX)
    if is_huge.any():
        at = int(np.argmax(is_huge))
        raise invalid(
            f'{name}[{at}] is {values[at]:g}, at most {FLOAT32_MAX:.3g} in size is allowed; check '
            'the sensor behind it, and its unit'
        )


def _check_state(state: Float32Array) -> None:
    if not (isinstance(state, np.ndarray) and state.dtype == np.float32 and state.ndim == 1):
        raise invalid('state must be a vector of float32')
    if state.size > STATE_LIMIT:
        raise invalid(f'state has {state.size} values, {STATE_LIMIT} are allowed')
    finite = np.isfinite(state)
    if not finite.all():
        at = int(np.argmin(finite))
        raise invalid(
            f'state[{at}] is {state[at]}; send finite numbers, and check the sensor behind it'
        )


def _check_images(images: Mapping[str, Uint8Array]) -> None:
    if len(images) > IMAGES_LIMIT:
        raise invalid(f'{len(images)} images, {IMAGES_LIMIT} are allowed')
    for name, image in images.items():
        if not is_printable(name, ID_LIMIT):
            raise invalid(f'camera name {name[:80]!r} is not printable text')
        if not _is_image(image):
            shape = getattr(image, 'shape', type(image).__name__)
            raise invalid(
                f'image {name!r} must be height x width x 3 of uint8 (RGB), at most '
                f'{PIXELS_LIMIT} pixels, got {shape} of {getattr(image, "dtype", "no array")}'
            )


def _is_image(image: object) -> bool:
    return (
        isinstance(image, np.ndarray)
        and image.dtype == np.uint8
        and image.ndim == 3
        and image.shape[2] == 3
        and 0 < image.shape[0] * image.shape[1] <= PIXELS_LIMIT
    )


def invalid(text: str) -> PredictionError:
    """Return the error of a request that cannot be read, or does not fit the policy."""
    return PredictionError(Status.INVALID, text)

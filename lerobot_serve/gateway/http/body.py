# SPDX-License-Identifier: Apache-2.0
"""The body of POST /act -> a request for actions and its routing. Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.gateway.callers.mapping import flat_state, NameMapping
from lerobot_serve.gateway.callers.predictions import (
    DELAY_STEPS_LIMIT,
    FLOAT32_MAX,
    IMAGES_LIMIT,
    PredictionRequest,
    TIMEOUT_LIMIT_S,
)
from lerobot_serve.gateway.http.fields import (
    check_known,
    FieldError,
    flag,
    is_number,
    number,
    parsed,
    text,
)
from lerobot_serve.gateway.http.images import image_of, PixelBudget, PIXELS_LIMIT
from lerobot_serve.gateway.upstream import PolicyContract

KEYS = (
    'episode_id',
    'request_id',
    'client_id',
    'instruction',
    'task',
    'state',
    'image',
    'images',
    'episode_start',
    'timeout_s',
    'inference_delay_steps',
)
ONLY_CAMERA = 'image'


@dataclass(frozen=True, slots=True)
class ActBody:
    """
    A body, checked as far as no policy is needed for it.

    state   vector in the order of the policy, or values by name
    images  by the names of the caller; the key `image` is the one camera of the policy
    """

    state: list[Any] | dict[str, Any]
    images: Mapping[str, Uint8Array]
    task: str = ''
    episode_id: str = ''
    request_id: str = ''
    client_id: str = ''
    episode_start: bool = False
    timeout_s: float = 0.0
    inference_delay_steps: int = 0


def read_body(body: bytes, pixels_here: int = PIXELS_LIMIT) -> ActBody:
    """
    Return the content of a body. Raises FieldError, and ManyPixels where the pictures have more
    than `pixels_here` pixels.
    """
    given = parsed(body)
    check_known(given, KEYS)
    delay = number(given, 'inference_delay_steps', 0, DELAY_STEPS_LIMIT)
    if delay != int(delay):
        raise FieldError('inference_delay_steps', delay, 'a whole number')
    return ActBody(
        state=_state(given.get('state', [])),
        images=_images(given, pixels_here),
        task=_task(given),
        episode_id=_id(given, 'episode_id'),
        request_id=_id(given, 'request_id'),
        client_id=_id(given, 'client_id'),
        episode_start=flag(given, 'episode_start'),
        timeout_s=number(given, 'timeout_s', 0, TIMEOUT_LIMIT_S),
        inference_delay_steps=int(delay),
    )


def _id(given: dict[str, Any], name: str) -> str:
    value = text(given, name)
    if not is_printable(value, ID_LIMIT):
        raise FieldError(name, value, f'printable text of at most {ID_LIMIT} bytes')
    return value


def _task(given: dict[str, Any]) -> str:
    if 'task' in given and 'instruction' in given:
        raise FieldError('task', 'both names', 'given once, as instruction or as task')
    return text(given, 'task') or text(given, 'instruction')


def _state(given: Any) -> list[Any] | dict[str, Any]:
    values = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(values, list):
        raise FieldError('state', given, 'a list of numbers, or an object NAME: number')
    for value in values:
        each = value if isinstance(value, list) and isinstance(given, dict) else [value]
        if not all(map(is_number, each)):
            raise FieldError('state', value, 'numbers')
    _check_size(given)
    state: list[Any] | dict[str, Any] = given
    return state


def _check_size(given: list[Any] | dict[str, Any]) -> None:
    """Raise FieldError for a number that is infinite in the type of a state."""
    for name, value in given.items() if isinstance(given, dict) else enumerate(given):
        for each in value if isinstance(value, list) else [value]:
            if abs(each) > FLOAT32_MAX:
                field = f'state.{name}' if isinstance(given, dict) else f'state[{name}]'
                raise FieldError(field, each, f'at most {FLOAT32_MAX:.3g} in size')


def _images(given: dict[str, Any], pixels_here: int) -> dict[str, Uint8Array]:
    found = given.get('images', {})
    if not isinstance(found, dict) or len(found) > IMAGES_LIMIT:
        raise FieldError('images', found, f'an object CAMERA: image, at most {IMAGES_LIMIT}')
    if ONLY_CAMERA in given and found:
        raise FieldError(ONLY_CAMERA, 'image and images', 'one of them')
    budget = PixelBudget(here=pixels_here)
    if ONLY_CAMERA in given:
        return {ONLY_CAMERA: image_of(ONLY_CAMERA, given[ONLY_CAMERA], budget)}
    return {name: image_of(f'images.{name}', each, budget) for name, each in found.items()}


def request_of(body: ActBody, mapping: NameMapping, contract: PolicyContract) -> PredictionRequest:
    """Return the request in the names of the policy. Raises PredictionError."""
    return PredictionRequest(
        state=_state_vector(body, mapping, contract),
        images=_named_images(body, mapping, contract),
        task=body.task,
        episode_id=body.episode_id,
        episode_start=body.episode_start,
        timeout_s=body.timeout_s,
        inference_delay_steps=body.inference_delay_steps,
    )


def _state_vector(body: ActBody, mapping: NameMapping, contract: PolicyContract) -> Float32Array:
    if isinstance(body.state, dict):
        return mapping.state_vector(body.state, contract)
    if len(body.state) != len(contract.state_names):
        names = ', '.join(contract.state_names[:64])
        raise FieldError(
            'state', body.state, f'{len(contract.state_names)} numbers in this order: {names}'
        )
    return flat_state(body.state, contract)


def _named_images(
    body: ActBody, mapping: NameMapping, contract: PolicyContract
) -> dict[str, Uint8Array]:
    images = dict(body.images)
    if ONLY_CAMERA in images and ONLY_CAMERA not in mapping.cameras and len(images) == 1:
        if len(contract.cameras) != 1:
            cameras = ', '.join(contract.cameras) or 'none'
            raise FieldError('image', 'one image', f'images with the cameras {cameras}')
        return {next(iter(contract.cameras)): images[ONLY_CAMERA]}
    return mapping.images(images, contract)

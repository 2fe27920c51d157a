# SPDX-License-Identifier: Apache-2.0
"""
The body of POST /act -> a request for actions and its routing. The OpenAPI description is made of
its types. Pure; any thread.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, UNSET
from msgspec.structs import replace

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.contract.limits import ID_LIMIT, TASK_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.files.load import Record
from lerobot_serve.files.parsing import is_unicode
from lerobot_serve.gateway.callers.mapping import flat_state, NameMapping
from lerobot_serve.gateway.callers.predictions import (
    DELAY_STEPS_LIMIT,
    FLOAT32_MAX,
    IMAGES_LIMIT,
    PredictionRequest,
    TIMEOUT_LIMIT_S,
)
from lerobot_serve.gateway.http.fields import checked, FieldError, parsed
from lerobot_serve.gateway.http.images import image_of, PixelBudget, PIXELS_LIMIT
from lerobot_serve.gateway.upstream import PolicyContract

ONLY_CAMERA = 'image'
NUMBERS = {'type': 'array', 'items': {'type': 'number'}}
VALUES = [{'type': 'number'}, NUMBERS]
IMAGE = {'$ref': '#/components/schemas/Image'}
TASKS, IDS = ('instruction', 'task'), ('episode_id', 'request_id', 'client_id')
Text = Annotated[str, Meta(description='text')]


def described(text: str, **schema: Any) -> Meta:
    """Return what the OpenAPI description says of a field; its bounds are in other Metas."""
    return Meta(extra_json_schema={'description': text, **schema})


class ActBody(Record, frozen=True):
    """
    A body, checked as far as no policy is needed for it.

    state   vector in the order of the policy, or values by name
    images  by the names of the caller, RGB; with `image` as the one camera of the policy
    task    or instruction
    """

    episode_id: Annotated[
        Text,
        described(
            'the same for all requests of an episode: an episode keeps its policy. Without it '
            'routing is degraded',
            maxLength=ID_LIMIT,
        ),
    ] = ''
    request_id: Annotated[
        Text,
        described('comes back in the reply', maxLength=ID_LIMIT),
    ] = ''
    client_id: Annotated[
        Text,
        described(
            'name of the robot: requests with the same name share a session; a newer one replaces '
            'one that waits (409). Without it, each episode_id of a host is a session',
            maxLength=ID_LIMIT,
        ),
    ] = ''
    instruction: Annotated[Text, described('what to do', maxLength=TASK_LIMIT)] = ''
    task: Annotated[Text, described('another name of instruction', maxLength=TASK_LIMIT)] = ''
    state: Annotated[
        Any,
        described(
            'numbers in the order of state_names of GET /config, or by name; a mapping of the '
            'door may name keys with several numbers',
            oneOf=[NUMBERS, {'type': 'object', 'additionalProperties': {'oneOf': VALUES}}],
        ),
    ] = []
    image: Annotated[Any, described('the picture of a policy with one camera', **IMAGE)] = UNSET
    images: Annotated[
        dict[str, Any],
        Meta(
            max_length=IMAGES_LIMIT,
            description=f'an object CAMERA: image, at most {IMAGES_LIMIT}',
        ),
        described('by the camera names of GET /config', additionalProperties=IMAGE),
    ] = {}
    episode_start: Annotated[bool, described('begin a new episode with this one')] = False
    timeout_s: Annotated[
        float,
        Meta(ge=0, le=TIMEOUT_LIMIT_S, description=f'a number in [0, {TIMEOUT_LIMIT_S:g}]'),
        described('a later prediction is refused (504); 0: the limit of the gateway'),
    ] = 0.0
    inference_delay_steps: Annotated[
        float,
        Meta(
            ge=0,
            le=DELAY_STEPS_LIMIT,
            multiple_of=1,
            description=f'a whole number in [0, {DELAY_STEPS_LIMIT}]',
        ),
        described('control steps that pass before the first action is executed'),
    ] = 0


KEYS = ActBody.__struct_fields__


def read_body(body: bytes, pixels_here: int = PIXELS_LIMIT) -> ActBody:
    """
    Return the content of a body. Raises FieldError, and ManyPixels where the pictures have more
    than `pixels_here` pixels.
    """
    given = parsed(body)
    if all(name in given for name in TASKS):
        raise FieldError('task', 'both names', 'given once, as instruction or as task')
    for name in (*IDS, *TASKS):
        if name in given and given[name] is None:
            del given[name]
    read = checked(ActBody, given)
    _check_texts(read)
    _check_state(read.state)
    return replace(
        read, images=_images(read, pixels_here), image=UNSET, task=read.task or read.instruction
    )


def _check_texts(body: ActBody) -> None:
    for name in (*IDS, *TASKS):
        value = getattr(body, name)
        if not is_unicode(value):
            raise FieldError(name, value, 'text in UTF-8, without lone surrogates')
        if name in IDS and not is_printable(value, ID_LIMIT):
            raise FieldError(name, value, f'printable text of at most {ID_LIMIT} bytes')


def _check_state(given: Any) -> None:
    """Raise FieldError for what is not a number, or infinite in the type of a state."""
    is_named = isinstance(given, dict)
    if not is_named and not isinstance(given, list):
        raise FieldError('state', given, 'a list of numbers, or an object NAME: number')
    for name, value in given.items() if is_named else enumerate(given):
        for each in value if is_named and isinstance(value, list) else [value]:
            if type(each) not in (int, float):
                raise FieldError('state', value, 'numbers')
            if abs(each) > FLOAT32_MAX:
                field = f'state.{name}' if is_named else f'state[{name}]'
                raise FieldError(field, each, f'at most {FLOAT32_MAX:.3g} in size')


def _images(body: ActBody, pixels_here: int) -> dict[str, Uint8Array]:
    budget = PixelBudget(here=pixels_here)
    if body.image is UNSET:
        return {
            name: image_of(f'images.{name}', each, budget) for name, each in body.images.items()
        }
    if body.images:
        raise FieldError(ONLY_CAMERA, 'image and images', 'one of them')
    return {ONLY_CAMERA: image_of(ONLY_CAMERA, body.image, budget)}


def request_of(body: ActBody, mapping: NameMapping, contract: PolicyContract) -> PredictionRequest:
    """Return the request in the names of the policy. Raises PredictionError."""
    return PredictionRequest(
        state=_state_vector(body, mapping, contract),
        images=_named_images(body, mapping, contract),
        task=body.task,
        episode_id=body.episode_id,
        episode_start=body.episode_start,
        timeout_s=body.timeout_s,
        inference_delay_steps=int(body.inference_delay_steps),
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

# SPDX-License-Identifier: Apache-2.0
"""
A message of openpi's client -> what a policy observes, by a YAML file: the names of
gateway/callers/mapping.py, and beside them:

    openpi:
      image_layout: chw        hwc, chw, or auto: by the dimension that is 3
      task_key: prompt         the key of the instruction
      new_episode: connection  or task: also when the instruction changes
      metadata: {}             added to the metadata frame, such as reset_pose
    cameras: ...
    state: ...
    actions: ...

Keys of nested mappings are joined with /, such as images/cam_high. Without `state`, a client sends
each value by the name that the policy gives it, or all in one vector under a key of STATE_VECTORS.

Pure; the event loop calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import cv2
import msgpack
import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.files.load import Record, rule
from lerobot_serve.gateway.callers.mapping import (
    MappingFile,
    Name,
    NameMapping,
    read_mapping_file,
    REMEDY,
)
from lerobot_serve.gateway.callers.predictions import (
    invalid,
    PredictionRequest,
)
from lerobot_serve.gateway.upstream import PolicyContract

# of clients that derive from openpi's: which call it is, and the name of the episode
ENDPOINT, SESSION_ID = 'endpoint', 'session_id'
INFER, RESET = 'infer', 'reset'
# of LeRobot's data sets, and of openpi's own
STATE_VECTORS = ('observation.state', 'state')
METADATA_LIMIT_BYTES = 1 << 16


def _is_sendable(metadata: dict[str, Any]) -> bool:
    try:
        return len(msgpack.packb(metadata)) <= METADATA_LIMIT_BYTES
    except (TypeError, ValueError, OverflowError):
        return False


class OpenpiPart(Record, frozen=True):
    """The part of the file that is of this protocol."""

    image_layout: Literal['auto', 'hwc', 'chw'] = 'auto'
    task_key: Name = 'prompt'
    new_episode: Literal['connection', 'task'] = 'connection'
    metadata: Annotated[
        dict[str, Any],
        rule(
            _is_sendable,
            f'a mapping of names to what msgpack sends, of at most {METADATA_LIMIT_BYTES} bytes',
        ),
    ] = {}


class OpenpiMappingFile(MappingFile, frozen=True):
    """See the module."""

    openpi: OpenpiPart | None = None

    @property
    def mapping(self) -> ObservationMapping:
        return ObservationMapping(self.names, self.openpi or OpenpiPart())


@dataclass(frozen=True, slots=True)
class ObservationMapping:
    """The names of a client, and the form of its messages."""

    names: NameMapping = field(default_factory=NameMapping)
    form: OpenpiPart = field(default_factory=OpenpiPart)

    def for_state(self, keys: Collection[str], contract: PolicyContract) -> ObservationMapping:
        """
        Return the mapping for a client whose state has these keys: a vector is all of it. Raises
        PredictionError for one beside other values.
        """
        vectors = [key for key in STATE_VECTORS if key in keys]
        if self.names.state or not vectors or set(vectors) & set(contract.state_names):
            return self
        if len(keys) > 1:
            raise invalid(
                f'the state is {", ".join(list(keys)[:32])}; send {vectors[0]} without other '
                f'numbers, or {REMEDY}',
            )
        return replace(self, names=replace(self.names, state=tuple(vectors)))


def read_observation_mapping(path: str) -> ObservationMapping:
    """Return the mapping of a file, the default for an empty path. Raises UserError."""
    return read_mapping_file(path, OpenpiMappingFile).mapping if path else ObservationMapping()


@dataclass(frozen=True, slots=True)
class Observation:
    """
    A message by kind of value, in the names of the client.

    state       numbers, and arrays of at most two dimensions
    episode_id  empty where the client names none
    """

    images: Mapping[str, NDArray[Any]]
    state: Mapping[str, Any]
    task: str = ''
    episode_id: str = ''
    endpoint: str = INFER


def sorted_observation(message: object, task_key: str) -> Observation:
    """Return what a message holds; keys of nested mappings are joined with /. Raises the error."""
    if not isinstance(message, dict):
        raise invalid(f'an observation must be a mapping, got {type(message).__name__}')
    images: dict[str, NDArray[Any]] = {}
    state: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for key, value in _leaves('', message):
        if key in images or key in state or key in texts:
            raise invalid(f'the observation has {key[:120]!r} twice')
        if isinstance(value, np.ndarray) and (value.ndim > 2 or _is_grey(value)):
            images[key] = value
        elif isinstance(value, (np.ndarray, int, float, list)):
            state[key] = value
        elif isinstance(value, (str, memoryview)):
            texts[key] = _text(key, value)
    endpoint = texts.get(ENDPOINT, INFER)
    if endpoint not in (INFER, RESET):
        raise invalid(f'{ENDPOINT} must be {INFER} or {RESET}, got {endpoint[:40]!r}')
    return Observation(images, state, texts.get(task_key, ''), texts.get(SESSION_ID, ''), endpoint)


def _leaves(prefix: str, found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        key = f'{prefix}{name}'
        if isinstance(value, dict):
            yield from _leaves(f'{key}/', value)
        else:
            yield key, value


def _is_grey(value: NDArray[Any]) -> bool:
    """Return whether an array is a picture without channels, which is refused as one."""
    return value.ndim == 2 and value.dtype == np.uint8


def _text(key: str, value: str | memoryview) -> str:
    try:
        return value if isinstance(value, str) else str(value, 'utf-8')
    except UnicodeDecodeError:
        raise invalid(f'{key[:120]!r} must be text in UTF-8') from None


def request_of(
    found: Observation,
    mapping: ObservationMapping,
    contract: PolicyContract,
    *,
    episode_start: bool,
) -> PredictionRequest:
    """Return the request in the names of the policy. Raises PredictionError."""
    named = mapping.names.images(found.images, contract)
    return PredictionRequest(
        state=mapping.names.state_vector(found.state, contract),
        images={
            name: rgb_image(name, each, mapping.form.image_layout) for name, each in named.items()
        },
        task=found.task,
        episode_id=found.episode_id,
        episode_start=episode_start,
    )


def rgb_image(name: str, array: NDArray[Any], layout: str) -> Uint8Array:
    """Return a picture as height x width x 3 of uint8, without a copy where it is one already."""
    if array.ndim != 3:
        raise invalid(
            f'picture {name!r} must have 3 dimensions, got the shape {array.shape}; send one frame'
        )
    is_first = _is_channel_first(name, array.shape, layout)
    pixels = array if array.dtype == np.uint8 else _bytes_of(name, array)
    # three times as fast as a transposed copy
    return np.asarray(cv2.merge(list(pixels)), np.uint8) if is_first else pixels


def _is_channel_first(name: str, shape: tuple[int, ...], layout: str) -> bool:
    if not all(shape):
        raise invalid(f'picture {name!r} is empty: its shape is {shape}')
    if layout != 'chw' and shape[2] == 3:
        return False
    if layout != 'hwc' and shape[0] == 3:
        return True
    raise invalid(
        f'picture {name!r} has the shape {shape}; image_layout {layout} of the mapping allows '
        f'{"3 x height x width" if layout == "chw" else "height x width x 3"}'
        f'{" and 3 x height x width" if layout == "auto" else ""}'
    )


def _bytes_of(name: str, array: NDArray[Any]) -> Uint8Array:
    """Return pixels of a picture of floats in [0, 1], as openpi's servers scale them."""
    if array.dtype.kind != 'f':
        raise invalid(
            f'picture {name!r} must be uint8, or floats in [0, 1], got {array.dtype.str}'
        )
    # not true for NaN
    if not (array.min() >= 0 and array.max() <= 1):
        raise invalid(f'picture {name!r} has floats outside of [0, 1]; send uint8')
    return np.asarray(array * 255, np.uint8)

# SPDX-License-Identifier: Apache-2.0
"""
What an openpi client sends, from a YAML file: the names of gateway/callers/mapping.py, and beside
them:

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
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from lerobot_serve.errors import UserError
from lerobot_serve.gateway.callers.mapping import (
    NameMapping,
    parsed_mapping,
    read_content,
    REMEDY,
)
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.parameters import closest_name

LAYOUTS, EPISODES = ('auto', 'hwc', 'chw'), ('connection', 'task')
KEYS = ('image_layout', 'task_key', 'new_episode', 'metadata')
# of LeRobot's data sets, and of openpi's own
STATE_VECTORS = ('observation.state', 'state')
PART, METADATA_LIMIT_BYTES = 'openpi', 1 << 16


@dataclass(frozen=True, slots=True)
class ObservationMapping:
    """See the module. Raises ValueError."""

    names: NameMapping = field(default_factory=NameMapping)
    image_layout: str = 'auto'
    task_key: str = 'prompt'
    new_episode: str = 'connection'
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice('image_layout', self.image_layout, LAYOUTS)
        _check_choice('new_episode', self.new_episode, EPISODES)
        if not (isinstance(self.task_key, str) and self.task_key):
            raise ValueError(f'openpi: task_key must be a name, got {self.task_key!r}')
        _check_metadata(self.metadata)

    def for_state(self, keys: Collection[str], contract: PolicyContract) -> ObservationMapping:
        """
        Return the mapping for a client whose state has these keys: a vector is all of it. Raises
        PredictionError for one beside other values.
        """
        vectors = [key for key in STATE_VECTORS if key in keys]
        if self.names.state or not vectors or set(vectors) & set(contract.state_names):
            return self
        if len(keys) > 1:
            raise PredictionError(
                Status.INVALID,
                f'the state is {", ".join(list(keys)[:32])}; send {vectors[0]} without other '
                f'numbers, or {REMEDY}',
            )
        return replace(self, names=replace(self.names, state=tuple(vectors)))


def read_observation_mapping(path: str) -> ObservationMapping:
    """Return the mapping of a file, the default for an empty path. Raises UserError."""
    if not path:
        return ObservationMapping()
    content = read_content(path)
    try:
        return parsed_observation_mapping(content)
    except ValueError as error:
        raise UserError(f'mapping {path}: {error}') from None


def parsed_observation_mapping(content: Any) -> ObservationMapping:
    """Return the mapping of decoded YAML. Raises ValueError."""
    rest = dict(content) if isinstance(content, dict) else content
    part = rest.pop(PART, None) or {} if isinstance(rest, dict) else {}
    if not isinstance(part, dict):
        raise ValueError(f'openpi: must have the keys {", ".join(KEYS)}')
    for key in part:
        if key not in KEYS:
            near = closest_name(str(key), KEYS)
            hint = f'; did you mean {near}?' if near else ''
            raise ValueError(f'openpi: {key!r} is no key, only {", ".join(KEYS)}{hint}')
    return ObservationMapping(parsed_mapping(rest), **part)


def _check_choice(key: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise ValueError(f'openpi: {key} must be one of {", ".join(allowed)}, got {given!r}')


def _check_metadata(given: Any) -> None:
    if not (isinstance(given, dict) and all(isinstance(key, str) for key in given)):
        raise ValueError('openpi: metadata must be a mapping of names')
    try:
        size = len(msgpack.packb(given))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f'openpi: metadata has a value that cannot be sent ({error})') from None
    if size > METADATA_LIMIT_BYTES:
        raise ValueError(f'openpi: metadata has {size} bytes, {METADATA_LIMIT_BYTES} are allowed')

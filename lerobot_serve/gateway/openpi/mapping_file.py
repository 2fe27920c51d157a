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

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgpack

from lerobot_serve.files.load import Record, rule
from lerobot_serve.gateway.callers.mapping import (
    MappingFile,
    Name,
    NameMapping,
    read_mapping_file,
    REMEDY,
)
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.upstream import PolicyContract

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
            raise PredictionError(
                Status.INVALID,
                f'the state is {", ".join(list(keys)[:32])}; send {vectors[0]} without other '
                f'numbers, or {REMEDY}',
            )
        return replace(self, names=replace(self.names, state=tuple(vectors)))


def read_observation_mapping(path: str) -> ObservationMapping:
    """Return the mapping of a file, the default for an empty path. Raises UserError."""
    return read_mapping_file(path, OpenpiMappingFile).mapping if path else ObservationMapping()

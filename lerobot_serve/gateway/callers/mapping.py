# SPDX-License-Identifier: Apache-2.0
"""
The names of a caller against those of the policy, from a YAML file:

    cameras:                        theirs: ours; null leaves a camera out
      observation/image: observation.images.front
      observation/depth: null
    state:                          their keys, in the order of the policy's state; a key may hold
      - observation/joint_position  several values
      - observation/gripper_position
    actions:                        their keys, in their order: one action of ours, or several
      arm: [joint_1.pos, joint_2.pos]
      gripper: gripper.pos

Without a file, and for each part that a file leaves out, the names must be equal; a camera may
also be named without observation.images. in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta
import numpy as np

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.errors import UserError
from lerobot_serve.files.load import load_file, Record, Refused, rule
from lerobot_serve.files.parsing import from_yaml
from lerobot_serve.gateway.callers.predictions import as_state, invalid, PredictionError
from lerobot_serve.gateway.upstream import PolicyContract

CAMERA_PREFIX = 'observation.images.'
REMEDY = 'correct the mapping of the door, see docs/gateway.md'


@dataclass(frozen=True, slots=True)
class NameMapping:
    """
    cameras  their camera -> ours, '' for one that is left out
    state    their keys in the order of the policy's state; empty: equal names
    actions  their key -> our action names; empty: all actions under the key `actions`
    """

    cameras: Mapping[str, str] = field(default_factory=dict)
    state: tuple[str, ...] = ()
    actions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def check(self, contract: PolicyContract) -> None:
        """Raise PredictionError where a name of ours is not one of this policy."""
        _check_known('cameras', filter(None, self.cameras.values()), contract.cameras)
        used = [name for names in self.actions.values() for name in names]
        _check_known('actions', used, contract.action_names)
        if self.actions and sorted(used) != sorted(contract.action_names):
            left = sorted(set(contract.action_names) - set(used))
            raise invalid(
                f'the mapping names {len(used)} actions, the policy has '
                f'{len(contract.action_names)}'
                + (f'; missing: {", ".join(left)}' if left else ', each once')
            )

    def check_change(self, before: PolicyContract, now: PolicyContract) -> None:
        """Raise PredictionError where names changed that a caller knows by their order alone."""
        if self.state and before.state_names != now.state_names:
            raise _reordered('state', before.state_names, now.state_names)
        if not self.actions and before.action_names != now.action_names:
            raise _reordered('actions', before.action_names, now.action_names)

    def images(
        self, found: Mapping[str, Uint8Array], contract: PolicyContract
    ) -> dict[str, Uint8Array]:
        """Return the images by our names. Raises PredictionError for a name without a partner."""
        named = {}
        for theirs, image in found.items():
            ours = self._camera(theirs, contract)
            if ours in named:
                raise invalid(f'two cameras are {ours}; {REMEDY}')
            if ours:
                named[ours] = image
        if missing := sorted(set(contract.cameras) - set(named)):
            raise invalid(
                f'the policy needs the cameras {", ".join(missing)}, got '
                f'{", ".join(found) or "none"}; send them, or {REMEDY}'
            )
        return named

    def _camera(self, theirs: str, contract: PolicyContract) -> str:
        if theirs in self.cameras:
            return self.cameras[theirs]
        for ours in (theirs, CAMERA_PREFIX + theirs):
            if ours in contract.cameras:
                return ours
        raise invalid(
            f'the policy has no camera {theirs[:120]!r}, only '
            f'{", ".join(contract.cameras) or "none"}; send these names, or {REMEDY}'
        )

    def state_vector(self, found: Mapping[str, object], contract: PolicyContract) -> Float32Array:
        """
        Return the state in the order of the policy. Raises PredictionError for a key that is
        missing, and for another number of values; keys that are not named by the mapping are not
        read.
        """
        keys = self.state or contract.state_names
        if missing := [key for key in keys if key not in found]:
            raise invalid(
                f'the state lacks {", ".join(missing[:8])}, got '
                f'{", ".join(list(found)[:32]) or "no numbers"}; '
                f'send these names, or {REMEDY}'
            )
        if not self.state and (extra := [key for key in found if key not in keys]):
            raise invalid(
                f'the policy has no state {", ".join(extra[:8])}, only {", ".join(keys[:32])}; '
                f'leave it out, or {REMEDY}'
            )
        if not keys:
            return np.zeros(0, np.float32)
        return flat_state(
            np.concatenate([as_state(found[key], f'state {key[:120]}') for key in keys]), contract
        )

    def action_columns(self, contract: PolicyContract) -> dict[str, list[int]]:
        """
        Return the columns of each of their keys, in their order; all columns under `actions`
        without a mapping. Raises PredictionError.
        """
        self.check(contract)
        if not self.actions:
            return {'actions': list(range(len(contract.action_names)))}
        place = {name: i for i, name in enumerate(contract.action_names)}
        return {theirs: [place[n] for n in names] for theirs, names in self.actions.items()}


EQUAL_NAMES = NameMapping()
Name = Annotated[str, Meta(min_length=1, description='a name')]
Names = Annotated[
    tuple[Name, ...],
    rule(lambda names: len({*names}) == len(names), 'a list of different names'),
]


class MappingFile(Record, frozen=True):
    """A mapping file; a part without a value is left out."""

    cameras: dict[str, Name | None] | None = None
    state: Names | None = None
    actions: dict[str, Name | Names] | None = None

    @property
    def names(self) -> NameMapping:
        return NameMapping(
            {theirs: ours or '' for theirs, ours in (self.cameras or {}).items()},
            self.state or (),
            {
                theirs: (ours,) if isinstance(ours, str) else ours
                for theirs, ours in (self.actions or {}).items()
            },
        )


T = TypeVar('T', bound=MappingFile)


def flat_state(values: object, contract: PolicyContract) -> Float32Array:
    """Return values without names, in the order of the policy. Raises PredictionError."""
    state = as_state(values)
    if state.size != len(contract.state_names):
        raise invalid(
            f'state has {state.size} values, the policy takes {len(contract.state_names)}: '
            f'{", ".join(contract.state_names[:64])}'
        )
    return state


def read_mapping(path: str) -> NameMapping:
    """Return the mapping of a file, that of equal names for an empty path. Raises UserError."""
    return read_mapping_file(path, MappingFile).names if path else EQUAL_NAMES


def read_mapping_file(path: str, kind: type[T]) -> T:
    """Return the content of a mapping file. Raises UserError."""
    try:
        return load_file(kind, Path(path).expanduser(), from_yaml)
    except Refused as refused:
        raise UserError(f'mapping {refused}') from None


def _check_known(part: str, names: Any, known: Any) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise invalid(
            f'the mapping names the {part} {", ".join(unknown)}, the policy has '
            f'{", ".join(known) or "none"}; {REMEDY}'
        )


def _reordered(part: str, before: tuple[str, ...], now: tuple[str, ...]) -> PredictionError:
    return invalid(
        f'the policy was replaced: its {part} were {", ".join(before[:64])} and are '
        f'{", ".join(now[:64])} now, which this client knows by their order alone; restart it to '
        f'read the new order, and {REMEDY}'
    )

# SPDX-License-Identifier: Apache-2.0
"""policy.json, the plain data that describes a policy of this package. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from msgspec import Meta

from lerobot_serve.files.load import load_file, Record, Refused, rule
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription, PolicyError
from lerobot_serve.policies.files.policy_folder import fingerprint, version_name

SETTINGS_FILE = 'policy.json'
FORMAT_VERSION = 1
SIZE_LIMIT = 4096
Size = Annotated[int, Meta(ge=1, le=SIZE_LIMIT)]
Name = Annotated[
    str,
    rule(str.isprintable, 'a name of 1 to 128 printable characters', min_length=1, max_length=128),
]
Names = Annotated[
    tuple[Name, ...],
    rule(lambda names: len({*names}) == len(names), 'a list of different names', min_length=1),
]


class CameraJson(Record, frozen=True):
    """A camera that a policy needs."""

    name: Name
    height: Size
    width: Size


class PolicyJson(Record, frozen=True):
    """The fields of every policy.json."""

    format_version: Annotated[
        Literal[1],
        Meta(description=f'{FORMAT_VERSION} (other versions need another lerobot_serve)'),
    ]
    id: Annotated[
        str,
        Meta(pattern=r'^[A-Za-z0-9_.-]{1,64}\Z', description='1 to 64 letters, digits and ._-'),
    ]
    state_names: Names
    action_names: Names
    cameras: tuple[CameraJson, ...]
    chunk_size: Size
    trained_fps: Annotated[float, Meta(gt=0, le=1000)]

    def __post_init__(self) -> None:
        names = [camera.name for camera in self.cameras]
        if len({*names}) < len(names):
            raise ValueError(f'the cameras must have different names, got {names}')

    def described(self, policy_type: str, fingerprint: str, device: str) -> PolicyDescription:
        """Return the description of the policy by this file alone."""
        cameras = [PolicyCamera(each.name, each.height, each.width) for each in self.cameras]
        return PolicyDescription(
            policy_type,
            fingerprint,
            self.state_names,
            self.action_names,
            tuple(cameras),
            self.chunk_size,
            self.trained_fps,
            device=device,
        )

    def fingerprint(self, files: Sequence[Path], name: str = '') -> str:
        """
        Return the fingerprint of files of one folder; `name` is that of the operator. Raises
        PolicyError.
        """
        try:
            return fingerprint(name or version_name(files[0].parent) or self.id, files)
        except OSError as error:
            raise PolicyError(f'cannot read the policy: {error}') from error


T = TypeVar('T', bound=PolicyJson)


def read_policy_json(kind: type[T], file: Path) -> T:
    """Return the content of policy.json. Raises PolicyError; it names file, field and rule."""
    try:
        return load_file(kind, file)
    except Refused as refused:
        raise PolicyError(str(refused)) from None

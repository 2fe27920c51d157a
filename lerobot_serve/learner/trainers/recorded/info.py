# SPDX-License-Identifier: Apache-2.0
"""What meta/info.json of a dataset says: names, rate, cameras. Any thread."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from lerobot_serve.files.load import load, parsed, Refused
from lerobot_serve.files.parsing import from_json
from lerobot_serve.learner.trainers.base import TrainerError

INFO_FILE = Path('meta', 'info.json')
STATE, ACTION = 'observation.state', 'action'
VIDEO, IMAGE = 'video', 'image'
JSON_LIMIT_BYTES = 64 << 20
AGAIN = 'make the dataset again with `lerobot-serve dataset`'


class Column(Struct, frozen=True):
    """A column, of numbers or of the pictures of a camera."""

    dtype: str


class Vector(Struct, frozen=True):
    """A column of numbers with names."""

    names: tuple[str, ...]


class Vectors(Struct, frozen=True, rename={'state': STATE, 'action': ACTION}):
    """The columns that each dataset of a robot has."""

    state: Vector
    action: Vector


class InfoFile(Struct, frozen=True):
    """The fields that are read."""

    codebase_version: Annotated[str, Meta(pattern=r'^v3\.', description='v3.0')]
    fps: Annotated[float, Meta(gt=0)]
    features: dict[str, Column]
    video_path: str | None = None


class RecordedInfo:
    """`cameras` has the kind of each camera's column, VIDEO or IMAGE, by its name."""

    def __init__(self, root: Path) -> None:
        """Read the file of the dataset in a folder. Raises TrainerError."""
        place = root / INFO_FILE
        content = _content(root, place)
        try:
            info = load(InfoFile, content, str(place))
            vectors = load(Vectors, content['features'], f'{place}: features')
        except Refused as refused:
            raise TrainerError(f'{refused}; {AGAIN}') from None
        self.root, self.fps, self.video_path = root, info.fps, info.video_path or ''
        self.state_names, self.action_names = vectors.state.names, vectors.action.names
        self.columns = frozenset(info.features)
        self.cameras = {
            name: column.dtype
            for name, column in info.features.items()
            if column.dtype in (VIDEO, IMAGE)
        }


def _content(root: Path, place: Path) -> Any:
    try:
        return parsed(place, from_json, JSON_LIMIT_BYTES)
    except Refused as refused:
        raise TrainerError(f'{root} is not a LeRobotDataset: {refused}; {AGAIN}') from None

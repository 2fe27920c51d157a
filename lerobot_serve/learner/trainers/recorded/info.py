# SPDX-License-Identifier: Apache-2.0
"""What meta/info.json of a dataset says: names, rate, cameras. Any thread."""

from __future__ import annotations

from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

from lerobot_serve.learner.trainers.base import TrainerError

INFO_FILE = Path('meta', 'info.json')
FORMAT = 'v3.'
STATE, ACTION = 'observation.state', 'action'
VIDEO, IMAGE = 'video', 'image'
JSON_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RecordedInfo:
    """`cameras` has the kind of each camera's column, VIDEO or IMAGE, by its name."""

    root: Path
    fps: float
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: dict[str, str]
    columns: frozenset[str]
    video_path: str


def read_info(root: Path) -> RecordedInfo:
    """Return the information on the dataset in a folder. Raises TrainerError."""
    file = root / INFO_FILE
    content = read_object(file)
    version = str(content.get('codebase_version'))
    if not version.startswith(FORMAT):
        raise TrainerError(
            f'{file}: the format is {version}, and v3.0 is read; make the dataset with '
            '`lerobot-serve dataset`'
        )
    try:
        features = content['features']
        kinds = {name: str(feature['dtype']) for name, feature in features.items()}
        return RecordedInfo(
            root=root,
            fps=float(content['fps']),
            state_names=_names(features[STATE]),
            action_names=_names(features[ACTION]),
            cameras={name: kind for name, kind in kinds.items() if kind in (VIDEO, IMAGE)},
            columns=frozenset(features),
            video_path=str(content.get('video_path') or ''),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TrainerError(
            f'{file} lacks {error}, or it has another form; make the dataset again with '
            '`lerobot-serve dataset`'
        ) from None


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of bounded size. Raises TrainerError."""
    try:
        if file.stat().st_size > JSON_LIMIT_BYTES:
            raise ValueError(f'over {JSON_LIMIT_BYTES} bytes')
        content = json.loads(file.read_text(encoding='utf-8'))
        if not isinstance(content, dict):
            raise ValueError('no object')
    except (OSError, ValueError, RecursionError) as error:
        raise TrainerError(
            f'{file.parent.parent} is not a LeRobotDataset: {file} cannot be read ({error}); make '
            'the dataset again with `lerobot-serve dataset`'
        ) from None
    return content


def _names(feature: Any) -> tuple[str, ...]:
    names = feature['names']
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError('names')
    return tuple(names)

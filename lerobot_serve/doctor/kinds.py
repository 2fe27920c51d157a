"""Which kind of policy a directory holds, by the files in it; nothing is loaded. Any thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.builtin.settings import KIND as REACH
from lerobot_serve.policies.lerobot.folder import (
    ADAPTER_FILE,
    CHECKPOINT_FOLDER,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
)
from lerobot_serve.policies.settings import SETTINGS_FILE


def find_kind(path: str) -> str:
    """Return the kind of the policy in a directory. Raises PolicyError."""
    folder = Path(path)
    if not path or not folder.is_dir():
        raise PolicyError(
            f'{path!r} is not a directory; give the directory of a policy, or say with --kind '
            'what else it is'
        )
    if (folder / SETTINGS_FILE).is_file():
        return 'builtin' if _kind_of(folder / SETTINGS_FILE) == REACH else 'exported'
    if (folder / CONFIG_FILE).is_file() or (folder / ADAPTER_FILE).is_file():
        return 'lerobot'
    raise PolicyError(
        f'{path} holds neither {CONFIG_FILE} (of LeRobot) nor {SETTINGS_FILE} (of a policy of '
        f'this package or an exported program); {_nearby(folder)}'
    )


def _nearby(folder: Path) -> str:
    """Return which directory may have been meant."""
    for inner in (
        folder / CHECKPOINT_FOLDER,
        folder / 'last' / CHECKPOINT_FOLDER,
        folder / CHECKPOINTS_FOLDER / 'last' / CHECKPOINT_FOLDER,
    ):
        if (inner / CONFIG_FILE).is_file():
            return f'give {inner}'
    return 'give the directory that holds one of them'


def _kind_of(file: Path) -> Any:
    try:
        content = json.loads(file.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError):
        # its loader says what is wrong with it
        return REACH
    return content.get('kind') if isinstance(content, dict) else REACH

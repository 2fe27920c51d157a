"""Which kind of policy a directory holds, by the files in it; nothing is loaded. Any thread."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.builtin.settings import KIND as REACH_KIND
from lerobot_serve.policies.exported.sidecar import KIND as EXPORTED_KIND
from lerobot_serve.policies.files.file_headers import read_json
from lerobot_serve.policies.files.policy_json import SETTINGS_FILE
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (
    ADAPTER_FILE,
    CHECKPOINT_FOLDER,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
)

# what policy.json calls a kind, and what it is called here
OWN_KINDS = {REACH_KIND: 'builtin', EXPORTED_KIND: 'exported'}
SHOWN_NAMES = 4


def detect_kind(path: str) -> str:
    """Return the kind of the policy in a directory. Raises PolicyError."""
    folder = Path(path)
    if not path or not folder.is_dir():
        raise PolicyError(
            f'{path!r} is not a directory; give the directory of a policy, or say what else it '
            'is (policy_kind, --kind)'
        )
    ours = _kinds_of(folder / SETTINGS_FILE) if (folder / SETTINGS_FILE).is_file() else ''
    lerobots = (folder / CONFIG_FILE).is_file() or (folder / ADAPTER_FILE).is_file()
    if ours and lerobots:
        raise PolicyError(
            f'{path} holds both {SETTINGS_FILE} (of the kind {ours}) and {CONFIG_FILE} (of '
            'LeRobot), so it is not clear what it is; say with policy_kind which, or keep them '
            'apart'
        )
    if ours or lerobots:
        return ours or 'lerobot'
    raise PolicyError(
        f'{path} holds neither {CONFIG_FILE} (of LeRobot) nor {SETTINGS_FILE} (of a policy of '
        f'this package or an exported program){_found(folder)}; {_nearby(folder)}'
    )


def _found(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f', but {", ".join(names[:SHOWN_NAMES])}' if names else ', it is empty'


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


def _kinds_of(file: Path) -> str:
    """Return the kind that policy.json names. Raises PolicyError."""
    value = read_json(file)
    kind = value.get('kind') if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in OWN_KINDS:
        raise PolicyError(
            f'{file}: kind must be {" or ".join(map(repr, OWN_KINDS))}, got {kind!r:.60}'
        )
    return OWN_KINDS[kind]

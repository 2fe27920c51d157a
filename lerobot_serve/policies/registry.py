# SPDX-License-Identifier: Apache-2.0
"""
Find and load a policy by its kind, from this and other installed packages, and detect the kind of
a directory from its files, without loading. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from lerobot_serve.policies.base import LoadOptions, Policy, PolicyError
from lerobot_serve.policies.builtin.settings import KIND as REACH_KIND
from lerobot_serve.policies.error_text import is_library_error, one_line
from lerobot_serve.policies.exported.sidecar import KIND as EXPORTED_KIND
from lerobot_serve.policies.files.file_headers import read_json
from lerobot_serve.policies.files.policy_folder import check_folder, SETTINGS_FILE
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (
    ADAPTER_FILE,
    CHECKPOINT_FOLDER,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
)
from lerobot_serve.policies.runtime.memory import leave_out_of_collections
from lerobot_serve.requirements import install_command

# `kind` of policy.json -> policy kind
OWN_KINDS = {REACH_KIND: 'builtin', EXPORTED_KIND: 'exported'}
SHOWN_NAMES = 4


def detect_kind(path: str) -> str:
    """Return the kind of the policy in a directory. Raises PolicyError."""
    folder = Path(path)
    if not path or not folder.is_dir():
        raise PolicyError(
            f'{path!r} is not a directory; give the directory of a policy, or set its kind '
            '(policy_kind, --kind)'
        )
    check_folder(folder)
    ours = _kinds_of(folder / SETTINGS_FILE) if (folder / SETTINGS_FILE).is_file() else ''
    is_lerobot = (folder / CONFIG_FILE).is_file() or (folder / ADAPTER_FILE).is_file()
    if ours and is_lerobot:
        raise PolicyError(
            f'{path} holds both {SETTINGS_FILE} (kind {ours}) and {CONFIG_FILE} (LeRobot), so its '
            'kind is ambiguous; set policy_kind, or use two directories'
        )
    if ours or is_lerobot:
        return ours or 'lerobot'
    raise PolicyError(
        f'{path} holds neither {CONFIG_FILE} (of LeRobot) nor {SETTINGS_FILE} (of a policy of '
        f'this package or an exported program){_found(folder)}; {_nearby(folder)}'
    )


def _found(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f', but {", ".join(names[:SHOWN_NAMES])}' if names else ', it is empty'


def _nearby(folder: Path) -> str:
    """Return a suggestion: a checkpoint directory nearby."""
    for inner in (
        folder / CHECKPOINT_FOLDER,
        folder / 'last' / CHECKPOINT_FOLDER,
        folder / CHECKPOINTS_FOLDER / 'last' / CHECKPOINT_FOLDER,
    ):
        if (inner / CONFIG_FILE).is_file():
            return f'give {inner}'
    return 'give the directory that holds one of these files'


def _kinds_of(file: Path) -> str:
    """Return the kind that policy.json names. Raises PolicyError."""
    value = read_json(file)
    kind = value.get('kind') if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in OWN_KINDS:
        raise PolicyError(
            f'{file}: kind must be {" or ".join(map(repr, OWN_KINDS))}, got {kind!r:.60}'
        )
    return OWN_KINDS[kind]


GROUP = 'lerobot_serve.policies'
# what a kind imports beside the weights' packages
OWN_IMPORTS = ('aiohttp', 'grpc', 'msgpack', 'onnxruntime', 'zmq')
WEIGHTS = ('torch', 'safetensors')


def installed_kinds() -> list[str]:
    """Return the installed policy kinds."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load(kind: str, options: LoadOptions) -> Policy:
    """Load the policy that `options` describe. Raises PolicyError."""
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            try:
                loader = entry.load()
            except ImportError as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {error}; install its requirements '
                    f'({_install_command(error)})'
                ) from error
            except Exception as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {one_line(error)}'
                ) from error
            return _load(loader, kind, options)
    raise PolicyError(
        f'there is no policy kind {kind!r}; installed are {", ".join(installed_kinds()) or "none"}'
    )


def _install_command(error: ImportError) -> str:
    """Return the command that installs what is missing, or else what kinds with weights need."""
    module = (error.name or '').split('.')[0]
    return install_command(module) if module in OWN_IMPORTS else install_command(*WEIGHTS)


def _load(loader: Callable[[LoadOptions], Policy], kind: str, options: LoadOptions) -> Policy:
    """Call the loader. Raises PolicyError."""
    leave_out_of_collections(kind)
    try:
        return loader(options)
    except PolicyError:
        raise
    except BaseException as error:
        # code of another package may raise any error
        if not is_library_error(error):
            raise
        raise PolicyError(
            f'policy kind {kind!r} cannot load {options.path!r}: {one_line(error)}'
        ) from error

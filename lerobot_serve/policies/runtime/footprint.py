# SPDX-License-Identifier: Apache-2.0
"""
Compute the memory of the files of a policy from their headers, before loading. No torch.

Counts all that a loader reads: weights, states of processor steps, programs, tokenizers and
language models. Any thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot_serve.policies.files.assets import find_assets
from lerobot_serve.policies.files.file_headers import read_json, tensor_bytes, unpacked_bytes

CONFIG_FILE = 'config.json'
DESCRIPTION_FILES = (CONFIG_FILE, 'policy.json')
STEP_FILES = ('policy_preprocessor.json', 'policy_postprocessor.json')
# files that the policy kinds of this package read, beside the state files of steps
POLICY_FILES = {
    CONFIG_FILE,
    *STEP_FILES,
    'policy.json',
    'model.safetensors',
    'statistics.safetensors',
}
PROGRAM_SUFFIXES = {'.pt2', '.onnx', '.data'}
# how to read the declared size by suffix; any other file counts with its size
SIZE_READERS = {'.safetensors': tensor_bytes, '.pt2': unpacked_bytes}


def declared_bytes(folder: Path) -> int:
    """
    Return the bytes that the files of a policy folder and their assets declare.

    The result is 0 for a path that is not a folder, as of a policy without files. Raises
    PolicyError for an unreadable header and for an asset that is not on this machine.

    In a folder of another package's policy kind, which has no known description, every file
    counts.
    """
    if not folder.is_dir():
        return 0
    if not any((folder / name).is_file() for name in DESCRIPTION_FILES):
        return sum(file_bytes(path) for path in folder.iterdir() if path.is_file())
    config = _object(folder / CONFIG_FILE)
    steps = [step for name in STEP_FILES for step in _steps(folder / name)]
    names = POLICY_FILES | {
        name for step in steps if isinstance(name := step.get('state_file'), str)
    }
    files = [
        path
        for path in folder.iterdir()
        if path.is_file() and (path.name in names or path.suffix in PROGRAM_SUFFIXES)
    ]
    configs = [value for step in steps if isinstance(value := step.get('config'), dict)]
    for asset in find_assets(config, configs):
        files += asset.files
    return sum(map(file_bytes, files))


def file_bytes(file: Path) -> int:
    """Return the bytes that one file declares. Raises PolicyError."""
    declared = SIZE_READERS.get(file.suffix)
    return declared(file) if declared else file.stat().st_size


def _object(file: Path) -> dict[str, Any]:
    value = read_json(file) if file.is_file() else {}
    return value if isinstance(value, dict) else {}


def _steps(file: Path) -> list[dict[str, Any]]:
    steps = _object(file).get('steps')
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []

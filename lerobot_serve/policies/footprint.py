"""
How much memory the files of a policy take once they are loaded, from their headers. No torch.

Counted is all that a loader reads: weights, states of processor steps, programs, tokenizers and
language models. Called before any of it is loaded; any thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot_serve.policies.assets import asset_files, asset_names, find_asset
from lerobot_serve.policies.headers import read_json, tensor_bytes, unpacked_bytes

LEROBOT_FILES = ('config.json', 'policy_preprocessor.json', 'policy_postprocessor.json')
# what a tensor file and an archive declare; of any other file its size
DECLARED = {'.safetensors': tensor_bytes, '.pt2': unpacked_bytes}


def declared_bytes(folder: Path) -> int:
    """
    Return what the files in a policy's folder, and the assets they name, declare together.

    0 for a path that is no folder: that of a policy without files. Raises PolicyError for a file
    whose header cannot be read, and for an asset that is not on this machine.
    """
    if not folder.is_dir():
        return 0
    files = [path for path in folder.iterdir() if path.is_file()]
    return sum(map(file_bytes, files)) + sum(map(asset_bytes, _assets(folder)))


def file_bytes(file: Path) -> int:
    """Return what one file declares. Raises PolicyError."""
    declared = DECLARED.get(file.suffix)
    return declared(file) if declared else file.stat().st_size


def asset_bytes(folder: Path) -> int:
    """Return what the files of a tokenizer or a language model declare. Raises PolicyError."""
    return sum(map(file_bytes, asset_files(folder)))


def _assets(folder: Path) -> list[Path]:
    """Return the folders of what a LeRobot policy names."""
    return [find_asset(name) for name in asset_names(_configurations(folder))]


def _configurations(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in LEROBOT_FILES:
        if (folder / name).is_file():
            value = read_json(folder / name)
            steps = value.get('steps') if isinstance(value, dict) else None
            parts = [value, *(steps if isinstance(steps, list) else [])]
            configs = [part.get('config') for part in parts if isinstance(part, dict)]
            found += [part for part in (*parts, *configs) if isinstance(part, dict)]
    return found

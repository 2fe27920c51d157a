"""
The tokenizers and language models that a LeRobot policy names, found on this machine.

A name is a folder here, or the id of a repository in the local cache of the Hugging Face hub. The
hub itself is never asked. No torch, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
import os
from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import PolicyError

# how configurations and processor steps name them
ASSET_KEYS = ('vlm_model_name', 'tokenizer_name')
HUB_ID = re.compile(r'[A-Za-z0-9][\w-]*(?:\.[\w-]+)*/[\w-]+(?:\.[\w-]+)*', re.ASCII)
COMMIT = re.compile(r'[0-9a-f]{40}')
FILE_LIMIT = 1000


def asset_names(configurations: list[Mapping[str, Any]]) -> list[str]:
    """Return what configurations name, each once and in order."""
    values = [each.get(key) for each in configurations for key in ASSET_KEYS]
    return list(dict.fromkeys(value for value in values if value and isinstance(value, str)))


def find_asset(name: str) -> Path:
    """Return the folder of a tokenizer or model on this machine. Raises PolicyError."""
    folder = Path(name)
    if folder.is_absolute() and folder.is_dir():
        return folder
    if HUB_ID.fullmatch(name):
        if snapshot := cached_snapshot(name):
            return snapshot
        raise PolicyError(
            f'the policy needs {name!r}, which is not on this machine, and a policy server never '
            f'loads from the network; where there is one, run: hf download {name}'
        )
    raise PolicyError(
        f'the policy needs {name!r:.120}, which must be the full path of a folder on this machine '
        'or the id of a repository (ORGANISATION/NAME) in the cache of the Hugging Face hub'
    )


def cached_snapshot(name: str) -> Path | None:
    """Return the folder in which the hub's cache holds the main revision of a repository."""
    repository = hub_cache() / f'models--{name.replace("/", "--")}'
    try:
        commit = (repository / 'refs' / 'main').read_text().strip()
    except OSError:
        return None
    snapshot = repository / 'snapshots' / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def hub_cache() -> Path:
    """Return the folder of the hub's cache, from the environment as huggingface_hub reads it."""
    for name in ('HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE'):
        if value := os.environ.get(name):
            return Path(value).expanduser()
    if home := os.environ.get('HF_HOME'):
        return Path(home).expanduser() / 'hub'
    cache = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
    return Path(cache).expanduser() / 'huggingface' / 'hub'


def asset_files(folder: Path) -> list[Path]:
    """Return the regular files of an asset's folder, without subfolders. Raises PolicyError."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise PolicyError(f'{folder} cannot be read ({error})') from error
    if len(files) > FILE_LIMIT:
        raise PolicyError(f'{folder} holds {len(files)} files, read are at most {FILE_LIMIT}')
    return files

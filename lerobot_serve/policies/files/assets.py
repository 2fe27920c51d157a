# SPDX-License-Identifier: Apache-2.0
"""
Find the tokenizers and language models of a LeRobot policy on this machine.

A name is a local folder, or the id of a repository in the local cache of the Hugging Face hub. The
hub itself is never contacted. No torch, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import PolicyError

HUB_ID = re.compile(r'[A-Za-z0-9][\w-]*(?:\.[\w-]+)*/[\w-]+(?:\.[\w-]+)*', re.ASCII)
COMMIT = re.compile(r'[0-9a-f]{40}')
FILE_LIMIT = 1000
# transformers reads files of these kinds for a tokenizer
TOKENIZER_SUFFIXES = {'.json', '.txt', '.model', '.jinja'}
WEIGHTS_SUFFIX = '.safetensors'


@dataclass(frozen=True, slots=True)
class Asset:
    """
    The folder of a tokenizer, or of the language model inside a network.

    `with_weights`: its own weights are read before the policy's replace them.
    """

    name: str
    folder: Path
    is_model: bool = False
    with_weights: bool = False

    @property
    def files(self) -> list[Path]:
        """All files that determine its behaviour. Raises PolicyError."""
        suffixes = TOKENIZER_SUFFIXES | ({WEIGHTS_SUFFIX} if self.with_weights else set())
        return [file for file in asset_files(self.folder) if file.suffix in suffixes]


def find_assets(config: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[Asset]:
    """
    Return the assets that a configuration and the settings of processor steps name, each once.

    Raises PolicyError for an asset that is not on this machine.
    """
    found = {}
    if name := _text_value(config, 'vlm_model_name'):
        with_weights = config.get('load_vlm_weights') is True
        found[name] = Asset(name, find_asset(name), is_model=True, with_weights=with_weights)
    for step in steps:
        if name := _text_value(step, 'tokenizer_name'):
            found.setdefault(name, Asset(name, find_asset(name)))
    return list(found.values())


def _text_value(values: Mapping[str, Any], key: str) -> str:
    name = values.get(key)
    return name if isinstance(name, str) else ''


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
            f'uses the network; download it first: hf download {name}'
        )
    raise PolicyError(
        f'the policy needs {name!r:.120}, which must be the full path of a folder on this machine '
        'or the id of a repository (ORGANISATION/NAME) in the cache of the Hugging Face hub'
    )


def cached_snapshot(name: str) -> Path | None:
    """Return the folder in which the hub's cache holds the main revision of a repository."""
    try:
        commit = (_cached_repository(name) / 'refs' / 'main').read_text().strip()
    except OSError:
        return None
    return cached_commit(name, commit)


def cached_commit(name: str, commit: str) -> Path | None:
    """Return the folder in which the hub's cache holds a commit of a repository."""
    snapshot = _cached_repository(name) / 'snapshots' / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def _cached_repository(name: str) -> Path:
    return hub_cache() / f'models--{name.replace("/", "--")}'


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
        raise PolicyError(f'{folder} holds {len(files)} files, at most {FILE_LIMIT} are read')
    return files

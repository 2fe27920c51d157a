# SPDX-License-Identifier: Apache-2.0
"""Compute the fingerprint of a policy: the SHA-256 of all files that determine its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
from pathlib import Path

from lerobot_serve.policies.runtime.loading_beside import give_way

BLOCK_BYTES = 1 << 20
SHOWN_DIGITS = 16


def fingerprint(
    policy_id: str,
    files: Sequence[Path],
    assets: Mapping[str, Path] | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """
    Return id@hash over the contents of `files`, independent of their folder.

    `assets` are files of other folders, each under a unique name, since two tokenizers have files
    of the same name. `settings` are the options that change the output. Raises OSError.
    """
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        _add(digest, file.name, file)
    for name, file in sorted((assets or {}).items()):
        _add(digest, f'asset {name}', file)
    for name, value in sorted((settings or {}).items()):
        digest.update(f'setting {name}\0{value}\0'.encode())
    return f'{policy_id}@{digest.hexdigest()[:SHOWN_DIGITS]}'


def _add(digest: hashlib._Hash, name: str, file: Path) -> None:
    digest.update(f'{name}\0{file.stat().st_size}\0'.encode())
    with open(file, 'rb') as handle:
        while block := handle.read(BLOCK_BYTES):
            digest.update(block)
            give_way()

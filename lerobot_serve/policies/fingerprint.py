"""Which policy is this? The SHA-256 of everything that decides what it does."""

from __future__ import annotations

import hashlib
from pathlib import Path

BLOCK_BYTES = 1 << 20
SHOWN_DIGITS = 16


def fingerprint(policy_id: str, files: list[Path]) -> str:
    """Return id@hash over the contents of `files`, whatever folder they lie in. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        digest.update(f'{file.name}\0{file.stat().st_size}\0'.encode())
        with open(file, 'rb') as handle:
            while block := handle.read(BLOCK_BYTES):
                digest.update(block)
    return f'{policy_id}@{digest.hexdigest()[:SHOWN_DIGITS]}'

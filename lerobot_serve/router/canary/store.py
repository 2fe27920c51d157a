"""
The canary on disk: it goes on where it was when the router starts again.

One JSON file, replaced as a whole. A file that is torn, damaged or not ours is set aside and the
canary begins anew; a disk that is full is told once, and serving goes on. Owned by the executor
thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from lerobot_serve.router.canary.canary import Canary

FORMAT = 'lerobot_serve canary 1'
# what is lost with the process; of the episodes of both policies alike
SAVE_PERIOD_NS = 5 * 10**9
SIZE_LIMIT = 10**6


class CanaryFile:
    """One file. `failures` counts the times it could not be written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._saved_ns: int | None = None
        self._saved: dict[str, Any] | None = None
        self._told = False
        self.failures = 0

    def load(self, canary: Canary) -> str:
        """Bring the canary to where it was; return a warning, empty when there is none."""
        try:
            content = self._read()
        except FileNotFoundError:
            return ''
        except OSError as error:
            return f'the canary begins anew: {self._file} cannot be read ({error})'
        memory = decode(content)
        if memory is not None:
            return canary.restore(memory)
        return f'the canary begins anew: {self._file} is damaged or not ours; {self._set_aside()}'

    def save(self, now_ns: int, canary: Canary, *, at_once: bool) -> str:
        """
        Write what changed, at once or now and then; return a warning once when it fails.

        `at_once` is for looks in which something happened and for an operator's word.
        """
        waited = self._saved_ns is None or now_ns - self._saved_ns >= SAVE_PERIOD_NS
        if not at_once and not waited:
            return ''
        memory = canary.memory()
        self._saved_ns = now_ns
        if memory == self._saved:
            return ''
        try:
            replace_file(self._file, encode(memory))
        except OSError as error:
            self.failures += 1
            told, self._told = self._told, True
            return '' if told else f'the canary is not remembered: {self._file}: {error}'
        self._saved, self._told = memory, False
        return ''

    def _read(self) -> bytes:
        with self._file.open('rb') as file:
            return file.read(SIZE_LIMIT)

    def _set_aside(self) -> str:
        aside = self._file.with_name(f'{self._file.name}.damaged')
        try:
            os.replace(self._file, aside)
        except OSError as error:
            return f'it cannot be set aside ({error})'
        return f'set aside as {aside}'


def encode(memory: dict[str, Any]) -> bytes:
    """Return the bytes of the file."""
    body = json.dumps(memory, sort_keys=True, allow_nan=False)
    return json.dumps({'format': FORMAT, 'sha256': _digest(body), 'canary': body}).encode()


def decode(content: bytes) -> dict[str, Any] | None:
    """Return what was encoded, None when a byte of it is not as it was."""
    try:
        outer = json.loads(content)
        if outer['format'] != FORMAT or outer['sha256'] != _digest(outer['canary']):
            return None
        return json.loads(outer['canary'])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def replace_file(file: Path, content: bytes) -> None:
    """Write a file so that whoever reads it sees the old or the new one. Raises OSError."""
    new = file.with_name(f'{file.name}.new')
    try:
        with new.open('wb') as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(new, file)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()

# SPDX-License-Identifier: Apache-2.0
"""
The record of a gate: a JSON file named by the candidate's digest. `lerobot-serve gate` writes
it, a router with `gate_folder` reads it before the candidate drives a robot. Plain; any thread.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, get_args, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT
from lerobot_serve.files.load import load, text_of
from lerobot_serve.files.parsing import from_json

FORMAT, BYTES_LIMIT, TEXT_LIMIT = 1, 1 << 20, 4096
# verdicts with which a candidate may drive robots
ADMITTED = ('passed', 'overridden')
# in a trace, instead of a verdict: it drove before the router started, its files are slot a's
ADMITTED_BEFORE, SAME_FILES = 'admitted_before', 'same_files'
GateVerdict = Literal['passed', 'overridden', 'held', 'refused', 'too_few']
VERDICTS: tuple[str, ...] = get_args(GateVerdict)
COMMAND = '`lerobot-serve gate RECORDING --candidate DIR --parent DIR --records {folder}`'


Count = Annotated[int, Meta(ge=0, le=2**53)]
Fingerprint = Annotated[str, text_of(FINGERPRINT_LIMIT)]
ShortText = Annotated[str, text_of(64)]


class GateRecord(Struct, frozen=True):
    """
    The result of a gate. `overrides` are gate, reason and person; `recordings` the SHA-256 of the
    replayed requests; `gates` one row for each gate, for people.
    """

    candidate: Fingerprint
    parent: Fingerprint
    verdict: GateVerdict
    text: Annotated[str, text_of(TEXT_LIMIT)]
    episodes: Count
    requests: Count
    recordings: ShortText
    made: ShortText
    gates: tuple[dict[str, Any], ...] = ()
    overrides: tuple[tuple[str, str, str], ...] = ()


def record_path(folder: Path, candidate: str) -> Path:
    """Return the file of a candidate; each digest has one of its own."""
    return folder / f'{quote(digest_of(candidate), safe="._-")}.json'


def write_record(folder: Path, record: GateRecord) -> Path:
    """Write the record as a whole, and return its file. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = record_path(folder, record.candidate)
    with replacement_of(path, durable=True) as part, part.open('w') as file:
        json.dump(
            {'format': FORMAT, **msgspec.to_builtins(record)}, file, indent=2, allow_nan=False
        )
        file.write('\n')
        file.flush()
        os.fsync(file.fileno())
    return path


def read_record(path: Path) -> GateRecord:
    """Read a record. Raises OSError, and ValueError with a readable text."""
    with path.open('rb') as file:
        raw = file.read(BYTES_LIMIT + 1)
    if len(raw) > BYTES_LIMIT:
        raise ValueError(f'more than {BYTES_LIMIT} bytes')
    values = from_json(raw)
    if not isinstance(values, dict) or values.get('format') != FORMAT:
        raise ValueError(f'not a gate record of format {FORMAT}')
    if missing := {'gates', 'overrides'} - values.keys():
        raise ValueError(f'not a gate record: {min(missing)} is missing')
    return load(GateRecord, values, 'not a gate record')


class GateRecords:
    """The records of a folder, read again when a file changes. Executor thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # candidate -> its file as it was when it was read, the record, or why there is none
        self._known: tuple[str, tuple[int, int, int] | None, GateRecord | str] = ('', None, '')

    def obstacle(self, candidate: str, champion: str) -> str:
        """
        Return why a candidate may not drive a robot; empty when it may. Each is a fingerprint,
        empty when it is not known.
        """
        if not candidate or digest_of(candidate) == digest_of(champion):
            return ''
        if not digest_of(candidate):
            return f'{candidate!r} has no digest, and so no gate record'
        found = self._find(candidate)
        command = COMMAND.format(folder=self._folder)
        if isinstance(found, str):
            return f'{found}; {command}'
        if digest_of(found.candidate) != digest_of(candidate):
            return f'its gate record is that of {found.candidate}; {command}'
        if found.verdict not in ADMITTED:
            return f'its gate: {found.verdict.replace("_", " ")}: {found.text}'
        if not champion:
            return 'slot a serves no policy yet, with which its gate record can be compared'
        if digest_of(found.parent) != digest_of(champion):
            return (
                f'its gate compared it with {found.parent}, and slot a serves {champion}; compare '
                f'it with that one: {command}'
            )
        return ''

    def record_of(self, candidate: str) -> GateRecord | None:
        """Return the record that `obstacle` has read of a candidate, if it has one."""
        known, _, found = self._known
        return found if known == candidate and isinstance(found, GateRecord) else None

    def _find(self, candidate: str) -> GateRecord | str:
        path = record_path(self._folder, candidate)
        try:
            state = path.stat()
        except FileNotFoundError:
            return f'it has no gate record in {self._folder}'
        except OSError as error:
            return f'its gate record cannot be read: {error}'
        seen = (state.st_mtime_ns, state.st_size, state.st_ino)
        if self._known[:2] != (candidate, seen):
            try:
                found: GateRecord | str = read_record(path)
            except (OSError, ValueError) as error:
                found = f'its gate record {path} cannot be read: {error}'
            self._known = candidate, seen, found
        return self._known[2]

"""
Requests around a moment of trouble with their answers, as one file of safetensors.
docs/capture.md has the format. Any thread.

Written and read here rather than by the package safetensors: the bytes go from where they are to
the disk, no thread waits meanwhile, and a machine that only replays needs no such package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import json
import os
from pathlib import Path
import struct
from typing import Any, BinaryIO, NamedTuple

FORMAT, VERSION = 'lerobot_serve.incident', 1
SUFFIX = '.safetensors'
LENGTH = struct.Struct('<Q')
HEADER_LIMIT = 64 << 20


class IncidentError(ValueError):
    """A file that cannot be read as an incident; says which, why and what to do."""


class RecordedExchange(NamedTuple):
    """
    One request and its answer: the CDR bytes of an Observation and of an ActionChunk, and what was
    known of the two.
    """

    request: bytes
    answer: bytes
    info: dict[str, Any]


class Incident(NamedTuple):
    """What a file holds: what happened, and the requests, oldest first."""

    about: dict[str, Any]
    pairs: list[RecordedExchange]


def write_incident(
    path: Path, pairs: Sequence[RecordedExchange], about: Mapping[str, Any] | None = None
) -> int:
    """
    Write the file, whole or not at all, and return its size. Raises OSError.

    `about` and each `info` must be JSON.
    """
    blocks = [block for pair in pairs for block in (pair.request, pair.answer)]
    head = incident_header(blocks, [pair.info for pair in pairs], about or {})
    part = path.with_name(path.name + '.part')
    try:
        with open(part, 'wb') as file:
            for block in (LENGTH.pack(len(head)), head, *blocks):
                file.write(block)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return LENGTH.size + len(head) + sum(map(len, blocks))


def read_exchanges(path: Path | str) -> list[RecordedExchange]:
    """Return the requests with their answers, oldest first. Raises IncidentError."""
    return read_incident(path).pairs


def read_incident(path: Path | str) -> Incident:
    """Return all that the file holds. Raises IncidentError."""
    try:
        with open(path, 'rb') as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise IncidentError(f'{path} cannot be read: {error.strerror or error}') from error
    except IncidentError as error:
        raise IncidentError(f'{path} {error}; name a file that a policy_server captured') from None


def incident_header(
    blocks: Sequence[bytes], infos: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> bytes:
    """Return what says where each block lies, a multiple of 8 bytes long."""
    metadata = {
        'format': FORMAT,
        'version': str(VERSION),
        'about': json.dumps(about),
        'pairs': json.dumps(list(infos)),
    }
    entries: dict[str, Any] = {'__metadata__': metadata}
    end = 0
    for name, block in zip(block_names(len(infos)), blocks, strict=True):
        begin, end = end, end + len(block)
        entries[name] = {'dtype': 'U8', 'shape': [len(block)], 'data_offsets': [begin, end]}
    head = json.dumps(entries, separators=(',', ':')).encode()
    return head + b' ' * (-len(head) % LENGTH.size)


def block_names(pairs: int) -> Iterator[str]:
    """Return what the blocks are called, in their order."""
    for number in range(pairs):
        yield f'request.{number}'
        yield f'answer.{number}'


def _read(file: BinaryIO, size: int) -> Incident:
    start = file.read(LENGTH.size)
    length = LENGTH.unpack(start)[0] if len(start) == LENGTH.size else size
    if length > min(HEADER_LIMIT, size - LENGTH.size):
        raise IncidentError('is no incident, or not all of one')
    entries = _json(file.read(length), dict)
    metadata = entries.get('__metadata__')
    if not (isinstance(metadata, dict) and metadata.get('format') == FORMAT):
        raise IncidentError('is no incident')
    if metadata.get('version') != str(VERSION):
        raise IncidentError(f'has version {metadata.get("version")}, this program reads {VERSION}')
    infos = _json(metadata.get('pairs', ''), list)
    if not all(isinstance(info, dict) for info in infos):
        raise IncidentError('is damaged: what it says of requests makes no sense')
    begin = LENGTH.size + length
    blocks = [_block(file, entries.get(name), begin, size) for name in block_names(len(infos))]
    pairs = [
        RecordedExchange(request, answer, info)
        for request, answer, info in zip(blocks[::2], blocks[1::2], infos, strict=True)
    ]
    return Incident(_json(metadata.get('about', ''), dict), pairs)


def _block(file: BinaryIO, entry: Any, begin: int, size: int) -> bytes:
    """Return the bytes of one block, whatever the header says of it. Raises IncidentError."""
    match entry:
        case {'dtype': 'U8', 'data_offsets': [int(first), int(last)]} if (
            0 <= first <= last <= size - begin
        ):
            file.seek(begin + first)
            return file.read(last - first)
    raise IncidentError('is damaged: a request or an answer is not where it should be')


def _json(text: Any, kind: type) -> Any:
    """Raises IncidentError."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise IncidentError('is no incident: its header makes no sense')
    return value

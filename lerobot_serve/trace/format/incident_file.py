# SPDX-License-Identifier: Apache-2.0
"""
Write and read incident files: requests around an incident with their replies, as safetensors.
docs/capture.md has the format. Any thread.

The package safetensors is not used: blocks are written without a copy, the interpreter is not
blocked, and a machine that only replays does not need the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import json
import os
from pathlib import Path
import struct
from typing import Any, BinaryIO, NamedTuple

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.errors import UserError

FORMAT, VERSION = 'lerobot_serve.incident', 2
SUFFIX = '.safetensors'
LENGTH = struct.Struct('<Q')
HEADER_LIMIT = 64 << 20


class IncidentError(UserError, ValueError):
    """A file that cannot be read as an incident; the text has path, reason and remedy."""


class RecordedExchange(NamedTuple):
    """One request and its reply: CDR bytes of Observation and ActionChunk, and their metadata."""

    request: bytes
    answer: bytes
    info: dict[str, Any]


class Incident(NamedTuple):
    """The content of a file: metadata of the incident, and the requests, oldest first."""

    about: dict[str, Any]
    pairs: list[RecordedExchange]


def write_incident(
    path: Path, pairs: Sequence[RecordedExchange], about: Mapping[str, Any] | None = None
) -> int:
    """
    Write the file atomically and return its size. Raises OSError.

    `about` and each `info` must be serializable as JSON.
    """
    blocks = [block for pair in pairs for block in (pair.request, pair.answer)]
    head = incident_header(blocks, [pair.info for pair in pairs], about or {})
    with replacement_of(path) as part, open(part, 'wb') as file:
        for block in (LENGTH.pack(len(head)), head, *blocks):
            file.write(block)
    return LENGTH.size + len(head) + sum(map(len, blocks))


def read_exchanges(path: Path | str) -> list[RecordedExchange]:
    """Return the requests with their replies, oldest first. Raises IncidentError."""
    return read_incident(path).pairs


def read_incident(path: Path | str) -> Incident:
    """Return the content of the file. Raises IncidentError."""
    try:
        with open(path, 'rb') as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise IncidentError(f'{path} cannot be read: {error.strerror or error}') from error
    except IncidentError as error:
        raise IncidentError(f'{path} {error}; use a file captured by a policy_server') from None


def incident_header(
    blocks: Sequence[bytes], infos: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> bytes:
    """Return the header with the offset of each block, padded to a multiple of 8 bytes."""
    metadata = {
        'format': FORMAT,
        'version': str(VERSION),
        'about': json.dumps(about),
        'exchanges': json.dumps(list(infos)),
    }
    entries: dict[str, Any] = {'__metadata__': metadata}
    end = 0
    for name, block in zip(block_names(len(infos)), blocks, strict=True):
        begin, end = end, end + len(block)
        entries[name] = {'dtype': 'U8', 'shape': [len(block)], 'data_offsets': [begin, end]}
    head = json.dumps(entries, separators=(',', ':')).encode()
    return head + b' ' * (-len(head) % LENGTH.size)


def block_names(pairs: int) -> Iterator[str]:
    """Yield the names of the blocks, in their order."""
    for number in range(pairs):
        yield f'request.{number}'
        yield f'reply.{number}'


def _read(file: BinaryIO, size: int) -> Incident:
    start = file.read(LENGTH.size)
    length = LENGTH.unpack(start)[0] if len(start) == LENGTH.size else size
    if length > min(HEADER_LIMIT, size - LENGTH.size):
        raise IncidentError('is not an incident file, or is truncated')
    entries = _json(file.read(length), dict)
    metadata = entries.get('__metadata__')
    if not (isinstance(metadata, dict) and metadata.get('format') == FORMAT):
        raise IncidentError('is not an incident file')
    if metadata.get('version') != str(VERSION):
        raise IncidentError(f'has version {metadata.get("version")}, this program reads {VERSION}')
    infos = _json(metadata.get('exchanges', ''), list)
    if not all(isinstance(info, dict) for info in infos):
        raise IncidentError('is damaged: the list of requests is invalid')
    begin = LENGTH.size + length
    spans = [_span(entries.get(name), size - begin) for name in block_names(len(infos))]
    # blocks that overlap would take more memory than the file has
    if sum(last - first for first, last in spans) > size - begin:
        raise IncidentError('is damaged: its requests and replies overlap')
    blocks = [_block(file, begin + first, begin + last) for first, last in spans]
    pairs = [
        RecordedExchange(request, answer, info)
        for request, answer, info in zip(blocks[::2], blocks[1::2], infos, strict=True)
    ]
    return Incident(_json(metadata.get('about', ''), dict), pairs)


def _span(entry: Any, size: int) -> tuple[int, int]:
    """Return begin and end of a block, both within the file. Raises IncidentError."""
    match entry:
        case {'dtype': 'U8', 'data_offsets': [int(first), int(last)]} if (
            0 <= first <= last <= size
        ):
            return first, last
    raise IncidentError('is damaged: a request or a reply is missing')


def _block(file: BinaryIO, first: int, last: int) -> bytes:
    file.seek(first)
    return file.read(last - first)


def _json(text: Any, kind: type) -> Any:
    """Return the parsed JSON. Raises IncidentError."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise IncidentError('is not an incident file: its header is invalid')
    return value

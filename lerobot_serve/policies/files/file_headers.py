# SPDX-License-Identifier: Apache-2.0
"""
Read the sizes that files declare from their headers, before loading. No torch, any thread.

A sparse file or an archive may take 4 KB on disk and gigabytes in memory, so the declared sizes
count, and the header itself is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
import math
from pathlib import Path
from typing import Any
import zipfile

from lerobot_serve.policies.base import PolicyError

HEADER_LIMIT_BYTES = 16 << 20
JSON_LIMIT_BYTES = 4 << 20
TENSOR_LIMIT, RANK_LIMIT = 100_000, 8
ITEM_BYTES = {
    'BOOL': 1,
    'U8': 1,
    'I8': 1,
    'F8_E5M2': 1,
    'F8_E4M3': 1,
    'I16': 2,
    'U16': 2,
    'F16': 2,
    'BF16': 2,
    'I32': 4,
    'U32': 4,
    'F32': 4,
    'I64': 8,
    'U64': 8,
    'F64': 8,
}


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def unreadable(file: Path, what: str, error: object) -> PolicyError:
    """Return the error for a file that is not what its name says."""
    return PolicyError(
        f'{file} is not a readable {what} ({error}); copy it again in binary mode; fetch it with '
        'git lfs if it is a pointer file'
    )


def read_json(file: Path, limit_bytes: int = JSON_LIMIT_BYTES) -> Any:
    """Return the value of a JSON file of bounded size. Raises PolicyError."""
    try:
        with open(file, 'rb') as handle:
            data = handle.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise PolicyError(
                f'{file} has more than {limit_bytes} bytes; it is not a file of a policy; copy it '
                'again'
            )
        return json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(
            f'{file} is not readable JSON ({" ".join(str(error).split())}); copy it again'
        ) from error


def tensor_headers(file: Path) -> dict[str, TensorHeader]:
    """
    Return the tensors that a safetensors file declares. Raises PolicyError.

    Offsets must cover the file without gap or overlap, so the sizes are those of the file.
    """
    try:
        with open(file, 'rb') as handle:
            size = int.from_bytes(handle.read(8), 'little')
            if not 2 <= size <= HEADER_LIMIT_BYTES:
                raise ValueError(f'its header has {size} bytes, over {HEADER_LIMIT_BYTES}')
            entries = json.loads(handle.read(size))
        data_bytes = file.stat().st_size - 8 - size
        if not isinstance(entries, dict) or len(entries) > TENSOR_LIMIT:
            raise ValueError(f'its header must be an object of at most {TENSOR_LIMIT} tensors')
        entries.pop('__metadata__', None)
        return _contiguous_headers(entries, data_bytes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        text = ' '.join(str(error).split())[:200]
        raise unreadable(file, 'safetensors file', text) from error


def _contiguous_headers(entries: dict[str, Any], data_bytes: int) -> dict[str, TensorHeader]:
    """Return the tensors of a header. Raises ValueError, KeyError, TypeError."""
    headers, spans = {}, []
    for name, entry in entries.items():
        headers[name] = header = _header(name, entry)
        begin, end = entry['data_offsets']
        if type(begin) is not int or type(end) is not int or end - begin != header.size_bytes:
            raise ValueError(f'the offsets of {name!r:.60} do not match its shape')
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise ValueError('its tensors overlap or leave gaps')
        position = end
    if position != data_bytes:
        raise ValueError(f'its tensors take {position} bytes, the file has {data_bytes}')
    return headers


def _header(name: str, entry: dict[str, Any]) -> TensorHeader:
    dtype, shape = entry['dtype'], entry['shape']
    sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if dtype not in ITEM_BYTES or not sizes or len(shape) > RANK_LIMIT:
        raise ValueError(f'{name!r:.60} is {shape!r:.60} of {dtype!r:.20}')
    return TensorHeader(dtype, tuple(shape))


def tensor_bytes(file: Path) -> int:
    """Return the bytes of all tensors of a safetensors file. Raises PolicyError."""
    return sum(header.size_bytes for header in tensor_headers(file).values())


def unpacked_bytes(file: Path) -> int:
    """Return the declared size of all members of a zip archive. Raises PolicyError."""
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, LookupError, RuntimeError, zipfile.BadZipFile) as error:
        raise unreadable(file, 'program archive', error) from error

# SPDX-License-Identifier: Apache-2.0
"""
Read and write CDR, the byte form of ROS 2 messages: little endian, fields aligned to their size.

Four bytes of encapsulation come first; alignment counts from their end. `CdrWriter` collects parts
and joins them once, so that an image is copied once. `CdrReader` returns views of its input and
copies nothing. Neither is shared between threads.

Fields that are equal in each message of a session, such as names, are packed once: `packed_part`
builds them, a function with a cache keeps them, and `CdrWriter.append_part` appends them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.limits import TEXT_LIMIT

ENCAPSULATION = b'\x00\x01\x00\x00'
START = len(ENCAPSULATION)
PADDING = tuple(b'\x00' * n for n in range(8))
UINT32 = struct.Struct('<I')
FLOAT32 = np.dtype('<f4')
# the bytes of a message, or a view of them in the memory of another
Raw = bytes | memoryview


class Parts:
    """
    A message that is not joined yet: `bytes()` does, and copies it once. Its buffers must not
    change until it is sent.
    """

    __slots__ = ('_size', 'buffers')

    def __init__(self, buffers: Sequence[bytes | memoryview], size: int) -> None:
        self.buffers, self._size = buffers, size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b''.join(self.buffers)


# what a link sends
Outgoing = Raw | Parts


class CdrWriter:
    """Builds one message. Raises Unencodable for a value beyond its limit."""

    __slots__ = ('_parts', '_size')

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = [ENCAPSULATION]
        self._size = 0

    @property
    def position(self) -> int:
        """Where the next field begins, before its alignment [bytes]."""
        return self._size

    @property
    def phase(self) -> int:
        """How far the next field is behind a multiple of 4 [bytes]."""
        return self._size % 4

    def append_part(self, part: bytes) -> None:
        """Append what `packed_part` built for this phase."""
        self._append(part, len(part))

    def _append(self, part: bytes | memoryview, size: int) -> None:
        self._parts.append(part)
        self._size += size

    def align(self, size: int) -> None:
        gap = -self._size % size
        if gap:
            self._append(PADDING[gap], gap)

    def pack(self, layout: struct.Struct, *values: int | float, align: int) -> None:
        """Append fixed-size fields without padding between them, at a multiple of `align`."""
        self.align(align)
        try:
            self._append(layout.pack(*values), layout.size)
        except (struct.error, OverflowError) as error:
            raise Unencodable(f'{values} does not fit its fields: {error}') from None

    def string(self, text: str, limit: int) -> None:
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise Unencodable(f'{text[:40]!r} holds half of a surrogate pair') from None
        if len(data) > limit:
            raise Unencodable(
                f'{text[:40]!r}... has {len(data)} bytes, at most {limit} are allowed'
            )
        if b'\x00' in data:
            raise Unencodable(f'{text[:40]!r} contains a NUL character')
        self.align(4)
        self._append(UINT32.pack(len(data) + 1) + data + b'\x00', len(data) + 5)

    def count(self, number: int, limit: int, what: str) -> None:
        if number > limit:
            raise Unencodable(f'{what}: {number} entries, at most {limit} are allowed')
        self.pack(UINT32, number, align=4)

    def block(self, data: bytes | memoryview | Uint8Array, limit: int, what: str) -> None:
        """Append a uint8 sequence. The buffer must not change until `finish`."""
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        if not view.c_contiguous:
            raise Unencodable(f'{what}: the buffer must be contiguous')
        self.count(view.nbytes, limit, what)
        self._append(view, view.nbytes)

    def floats(self, values: NDArray[np.floating], limit: int, what: str) -> None:
        """Append a float32 sequence from an array of any shape, row after row."""
        self.array(values, FLOAT32, limit, what)

    def array(self, values: NDArray[Any], element: np.dtype[Any], limit: int, what: str) -> None:
        """Append a sequence of numbers from an array of any shape, row after row."""
        flat = np.ascontiguousarray(values, element).reshape(-1)
        self.count(flat.size, limit, what)
        if flat.size:
            self.align(element.itemsize)
            self._append(flat.data.cast('B'), flat.nbytes)

    def finish(self) -> bytes:
        return b''.join(self._parts)

    def parts(self) -> Parts:
        return Parts(self._parts, START + self._size)


def encodable_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """
    Return the text as a message may have it: without NUL bytes, cut to `limit` bytes. The setters
    of rclpy count characters, readers count bytes.
    """
    data = text.replace('\0', ' ').encode('utf-8', 'replace')
    return data[:limit].decode(errors='ignore')


def packed_part(phase: int, write: Callable[[CdrWriter], None]) -> bytes:
    """Return fields of at most 4 bytes each as they follow a message of this phase."""
    writer = CdrWriter()
    writer._size = phase
    write(writer)
    return writer.finish()[START:]


class CdrReader:
    """
    Reads one message from its first field on. Raises Malformed for bytes that are not such a
    message.
    """

    __slots__ = ('_at', '_end', '_raw')

    def __init__(self, raw: Raw) -> None:
        if raw[:2] != ENCAPSULATION[:2]:
            raise Malformed(
                'encapsulation',
                f'expected little-endian CDR (00 01), got {bytes(raw[:2]).hex(" ")!r}',
            )
        self._raw, self._at, self._end = raw, START, len(raw)

    @property
    def position(self) -> int:
        """Where the next field begins, before its alignment [bytes]."""
        return self._at

    @property
    def is_at_end(self) -> bool:
        """
        Whether nothing follows but what fills the last four bytes: an older version ends a message
        before its newer fields.
        """
        return self._end - self._at < 4

    def _take(self, size: int, align: int) -> int:
        begin = self._at + (START - self._at) % align
        self._at = begin + size
        if self._at > self._end:
            raise Malformed(
                'truncated',
                f'the message ends at byte {len(self._raw)}, byte {self._at} is needed',
            )
        return begin

    def unpack(self, layout: struct.Struct, *, align: int) -> tuple[Any, ...]:
        return layout.unpack_from(self._raw, self._take(layout.size, align))

    def count(self, limit: int, what: str) -> int:
        number: int = UINT32.unpack_from(self._raw, self._take(4, 4))[0]
        return checked_count(number, limit, what)

    def string(self, limit: int, what: str) -> str:
        # a message has many: without a call for each of its parts
        begin = self._at + -self._at % 4 + UINT32.size
        if begin > self._end:
            self._take(UINT32.size, 4)
        (size,) = UINT32.unpack_from(self._raw, begin - UINT32.size)
        checked_count(size, limit + 1, what)
        self._at = begin
        self._take(size, 1)
        data = bytes(self._raw[begin : begin + size])
        # size counts the closing NUL; some writers send 0 for the empty string
        if data and data.find(0) != size - 1:
            # ids are echoed: reject what cannot be encoded again
            raise Malformed('not_a_string', f'{what} must contain one NUL, as its last byte')
        try:
            return data[:-1].decode()
        except UnicodeDecodeError:
            raise Malformed('not_utf8', f'{what} is not UTF-8') from None

    def part(self, limit: int, what: str, fields_bytes: int) -> bytes:
        """
        Return the bytes of a string and of the fields after it, which begin at a multiple of 4;
        `read_part` reads them.
        """
        size = self.count(limit + 1, what)
        begin = self._take(size, 1) - UINT32.size
        end = self._take(fields_bytes, 4) + fields_bytes
        return bytes(self._raw[begin:end])

    def block(self, limit: int, what: str) -> Uint8Array:
        """Return a uint8 view."""
        size = self.count(limit, what)
        return np.frombuffer(self._raw, np.uint8, size, self._take(size, 1))

    def skip(self, limit: int, what: str, item: int = 1) -> None:
        """Skip a sequence of numbers of `item` bytes each."""
        self._take(self.count(limit, what) * item, item)

    def skip_string(self, limit: int, what: str) -> None:
        self.skip(limit + 1, what)

    def floats(self, limit: int, what: str) -> Float32Array:
        """Return a float32 view."""
        return self.array(FLOAT32, limit, what)

    def array(self, element: np.dtype[Any], limit: int, what: str) -> NDArray[Any]:
        """Return a view of a sequence of numbers."""
        return self.values(element, self.count(limit, what))

    def values(self, element: np.dtype[Any], size: int) -> NDArray[Any]:
        """Return a view of so many numbers, whose count was read."""
        # an empty sequence has no alignment
        begin = self._take(element.itemsize * size, element.itemsize) if size else self._at
        return np.frombuffer(self._raw, element, size, begin)


def checked_count(number: int, limit: int, what: str) -> int:
    """Return a count that is within its limit. Raises Malformed."""
    if number > limit:
        raise Malformed('oversized', f'{what}: {number} entries, at most {limit} are allowed')
    return number


def read_part(part: bytes) -> CdrReader:
    """Return a reader of what `CdrReader.part` returned."""
    return CdrReader(ENCAPSULATION + part)

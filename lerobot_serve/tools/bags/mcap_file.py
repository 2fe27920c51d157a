# SPDX-License-Identifier: Apache-2.0
"""
Reads the messages of one MCAP file, also after its recorder was killed.

The module splits the file into records by their lengths; the package mcap decodes them. Damaged
records are skipped and reported. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
import struct
from typing import BinaryIO, NamedTuple
import zlib

from lz4.frame import LZ4FrameDecompressor
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, McapRecord, Schema
from mcap.records import Message as McapMessage
import zstandard

from lerobot_serve.tools.bags.message import BagError, BagMessage

MAGIC = b'\x89MCAP0\r\n'
HEAD = struct.Struct('<BQ')
# a larger length means damage; real chunks and messages are far smaller
RECORD_LIMIT = 1 << 30
# the end of the text about a file that ends as one whose recorder was killed: nothing else is lost
CUT = 'its recorder was killed or is still writing'
# an uncompressed chunk: its length is that of its records and of what it has before them
CHUNK_HEAD = struct.Struct('<QQQIIQ')

# records with messages, and with what these need
DECODED = (Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE)

ReportDamage = Callable[[str], None]


class StoredMessage(NamedTuple):
    """One message of a file, with all that the file has about it."""

    channel: Channel
    schema: Schema | None
    received_ns: int
    sent_ns: int
    data: bytes

    @property
    def message(self) -> BagMessage:
        """The message; its type is empty if the file has none."""
        kind = self.schema.name if self.schema else ''
        return BagMessage(self.channel.topic, kind, self.received_ns, self.data, self.sent_ns)


def read(path: Path, on_damage: ReportDamage) -> Iterator[BagMessage]:
    """
    Yield the messages in the order in which they were written; `on_damage` receives a
    text for each part that cannot be read. Raises BagError for a file that is not MCAP, OSError.
    """
    for found in read_stored(path, on_damage):
        yield found.message


def read_stored(path: Path, on_damage: ReportDamage) -> Iterator[StoredMessage]:
    """Yield the messages as `read` does, each with its channel, schema and both times."""
    with open(path, 'rb') as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BagError(f'{path} is not an MCAP file: wrong first bytes')
        yield from _messages(file, path, on_damage)


def _messages(file: BinaryIO, path: Path, on_damage: ReportDamage) -> Iterator[StoredMessage]:
    schemas: dict[int, Schema] = {}
    channels: dict[int, tuple[Channel, Schema | None]] = {}
    unnamed_channels: set[int] = set()
    for at, opcode, data in _records(file, path, on_damage):
        for record in _opened(opcode, data, f'{path}: the record at byte {at}', on_damage):
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel):
                channels[record.id] = record, schemas.get(record.schema_id)
            elif not isinstance(record, McapMessage):
                # a chunk has schemas, channels and messages only
                continue
            elif record.channel_id in channels:
                channel, schema = channels[record.channel_id]
                yield StoredMessage(
                    channel, schema, record.log_time, record.publish_time, record.data
                )
            elif record.channel_id not in unnamed_channels:
                unnamed_channels.add(record.channel_id)
                on_damage(f'{path}: from byte {at} on, messages of a topic whose name is lost')


def _records(
    file: BinaryIO, path: Path, on_damage: ReportDamage
) -> Iterator[tuple[int, int, bytes]]:
    """Yield position, kind and bytes of each record up to the footer."""
    size = path.stat().st_size
    while True:
        at = file.tell()
        head = file.read(HEAD.size)
        if not head:
            on_damage(f'{path} has no footer: {CUT}')
            return
        opcode, length = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0)
        if opcode == 0 or length > min(RECORD_LIMIT, size - at - HEAD.size):
            why = f': {CUT}' if _is_cut(file, opcode, length, size) else ''
            on_damage(
                f'{path} ends or is damaged at byte {at} of {size}; the rest is skipped{why}'
            )
            return
        if opcode == Opcode.FOOTER:
            if at + HEAD.size + length + len(MAGIC) != size:
                on_damage(f'{path} has a footer at byte {at} of {size}; the rest is skipped')
            return
        if opcode in (*DECODED, Opcode.CHUNK):
            yield at, opcode, file.read(length)
        else:
            file.seek(length, 1)


def _is_cut(file: BinaryIO, opcode: int, length: int, size: int) -> bool:
    """
    Return whether the rest of a file, after the head of a record, is one chunk that was not
    written to its end, or what a power failure leaves: zeros.
    """
    left = size - file.tell()
    if opcode == Opcode.CHUNK and length > left:
        data = file.read(CHUNK_HEAD.size)
        if len(data) < CHUNK_HEAD.size:
            return True
        *_, whole, _, words, stored = CHUNK_HEAD.unpack(data)
        return not words and whole == stored == length - CHUNK_HEAD.size
    return not opcode and not length and not any(map(any, iter(lambda: file.read(1 << 16), b'')))


def _opened(opcode: int, data: bytes, name: str, on_damage: ReportDamage) -> Iterator[McapRecord]:
    """Yield the records of a record: those of a chunk, or itself; report damage by its name."""
    stream = ReadDataStream(BytesIO(data))
    try:
        if opcode == Opcode.CHUNK:
            yield from _split(_content(Chunk.read(stream)))
        else:
            yield _decoded(opcode, stream, len(data))
    except Exception as error:
        # decoding damaged data may raise any error
        words = f'{type(error).__name__}: {error}'[:200]
        on_damage(f'{name} is damaged ({words}); what is left of it is skipped')


def _split(content: bytes) -> Iterator[McapRecord]:
    """
    Yield the records of a chunk, one by one: many small ones take much more memory than it has.
    """
    stream = ReadDataStream(BytesIO(content))
    while stream.count < len(content):
        opcode, length = stream.read1(), stream.read8()
        if opcode in DECODED:
            yield _decoded(opcode, stream, length)
        else:
            stream.read(length)


def _content(chunk: Chunk) -> bytes:
    """Return the bytes of a chunk, unpacked and compared with its checksum."""
    if chunk.uncompressed_size > RECORD_LIMIT:
        raise ValueError(f'{chunk.uncompressed_size} bytes in one chunk')
    content = _unpacked(chunk.compression, chunk.data, chunk.uncompressed_size)
    if chunk.uncompressed_crc and zlib.crc32(content) != chunk.uncompressed_crc:
        raise ValueError('wrong checksum')
    return content


def _unpacked(compression: str, data: bytes, size: int) -> bytes:
    """Unpack no more than `size` bytes. Raises ValueError, and any error for damaged data."""
    wrong = ValueError(f'it should have {size} bytes unpacked')
    if compression == 'zstd':
        # of a frame that names its size, as many bytes are allocated; -1: it names none
        if zstandard.frame_content_size(data) not in (-1, size):
            raise wrong
        data = zstandard.decompress(data, size)
    elif compression == 'lz4':
        data = LZ4FrameDecompressor().decompress(data, max_length=size + 1)
    else:
        return data
    if len(data) != size:
        raise wrong
    return data


def _decoded(opcode: int, stream: ReadDataStream, length: int) -> McapRecord:
    record: McapRecord
    if opcode == Opcode.MESSAGE:
        record = McapMessage.read(stream, length)
    else:
        record = Schema.read(stream) if opcode == Opcode.SCHEMA else Channel.read(stream)
    return record

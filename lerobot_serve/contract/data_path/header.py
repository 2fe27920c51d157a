# SPDX-License-Identifier: Apache-2.0
"""The header of requests and replies; read and modify it without decoding the message."""

from __future__ import annotations

from functools import lru_cache
import struct
from typing import NamedTuple

from msgspec import Struct

from lerobot_serve.contract.cdr import CdrReader, CdrWriter, packed_part, Raw, START
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.schema import MsgType

HEADER_LAYOUT = struct.Struct('<QqIIHBB')
FLAGS_AT = START + HEADER_LAYOUT.size - 1


class Header(Struct, frozen=True):
    """The fields of RequestHeader.msg."""

    seq: int
    client_mono_ns: int
    session_epoch: int
    episode: int
    schema_version: int
    msg_type: int
    flags: int = 0

    def for_reply(self, flags: int) -> Header:
        """Return the header of the reply: all fields echoed, with the flags of the server."""
        return Header(
            seq=self.seq,
            client_mono_ns=self.client_mono_ns,
            session_epoch=self.session_epoch,
            episode=self.episode,
            schema_version=self.schema_version,
            msg_type=MsgType.CHUNK,
            flags=flags,
        )


class Envelope(NamedTuple):
    """The leading fields of a message, which a router reads before it forwards the bytes."""

    header: Header
    client_id: str
    episode_id: str


def read_envelope(raw: Raw) -> Envelope:
    """
    Read the header and the two names from the bytes of an Observation or ActionChunk. Raises
    Malformed.
    """
    return read_envelope_fields(CdrReader(raw))


def with_flags(raw: bytes, flags: int, *, cleared: int = 0) -> bytes:
    """
    Return a copy of the message with these flags set in addition, and `cleared` ones not, unless
    they are set too. Raises Malformed.
    """
    if len(raw) <= FLAGS_AT:
        raise Malformed('truncated', f'the message ends at byte {len(raw)}, within its header')
    view = memoryview(raw)
    changed = bytes((raw[FLAGS_AT] & ~cleared & 0xFF | flags,))
    return b''.join((view[:FLAGS_AT], changed, view[FLAGS_AT + 1 :]))


def read_envelope_fields(reader: CdrReader) -> Envelope:
    header = Header(*reader.unpack(HEADER_LAYOUT, align=8))
    return Envelope(
        header, reader.string(ID_LIMIT, 'client_id'), reader.string(ID_LIMIT, 'episode_id')
    )


def write_envelope_fields(
    writer: CdrWriter, header: Header, client_id: str, episode_id: str
) -> None:
    writer.pack(
        HEADER_LAYOUT,
        header.seq,
        header.client_mono_ns,
        header.session_epoch,
        header.episode,
        header.schema_version,
        header.msg_type,
        header.flags,
        align=8,
    )
    writer.append_part(_names(writer.phase, client_id, episode_id))


# of the sessions of a server, each with an episode
@lru_cache(maxsize=512)
def _names(phase: int, client_id: str, episode_id: str) -> bytes:
    def write(writer: CdrWriter) -> None:
        writer.string(client_id, ID_LIMIT)
        writer.string(episode_id, ID_LIMIT)

    return packed_part(phase, write)

# SPDX-License-Identifier: Apache-2.0
"""
The frames of the local path: one message of a SOCK_SEQPACKET socket each, which keeps their
borders. The first byte is the kind. Pure.
"""

from __future__ import annotations

from enum import IntEnum
import struct
from typing import NamedTuple

VERSION = 1
TOKEN_BYTES = 16
# of a reply: a larger one goes over the link around this path
CHUNK_BYTES_LIMIT = 64 << 10
FRAME_BYTES_LIMIT = 1 + CHUNK_BYTES_LIMIT


class Frame(IntEnum):
    """
    ATTACH   client: version and token of a session; its replies shall come here
    REQUEST  client: a request is in a page, whose descriptor comes with its first use
    WELCOME  server: the token is known
    REFUSED  server: it is not, or the versions differ; a text says which
    CHUNK    server: the bytes of a reply
    CLOSE    server: it ends, or closes this connection, on purpose
    """

    ATTACH = 1
    REQUEST = 2
    WELCOME = 3
    REFUSED = 4
    CHUNK = 5
    CLOSE = 6


ATTACH = struct.Struct(f'<BH{TOKEN_BYTES}s')
REQUEST = struct.Struct('<BHIq')
CHUNK = bytes((Frame.CHUNK,))
WELCOME = bytes((Frame.WELCOME,))
CLOSE = bytes((Frame.CLOSE,))


class Request(NamedTuple):
    """A request of `size` bytes in a page; of no use after `expires_ns` of the host's clock."""

    page: int
    size: int
    expires_ns: int


def attach(token: bytes) -> bytes:
    return ATTACH.pack(Frame.ATTACH, VERSION, token)


def read_attach(frame: bytes) -> tuple[int, bytes]:
    """Return version and token. Raises ValueError."""
    if len(frame) != ATTACH.size:
        raise ValueError(f'a frame ATTACH has {ATTACH.size} bytes, got {len(frame)}')
    _, version, token = ATTACH.unpack(frame)
    return version, token


def request(of: Request) -> bytes:
    return REQUEST.pack(Frame.REQUEST, *of)


def read_request(frame: bytes) -> Request:
    """Raises ValueError."""
    if len(frame) != REQUEST.size:
        raise ValueError(f'a frame REQUEST has {REQUEST.size} bytes, got {len(frame)}')
    return Request(*REQUEST.unpack(frame)[1:])


def refused(text: str) -> bytes:
    return bytes((Frame.REFUSED,)) + text.encode()

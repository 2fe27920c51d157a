# SPDX-License-Identifier: Apache-2.0
"""
ZMTP 3, the wire of ZeroMQ, as the peer of a REQ or DEALER socket needs it. Pure.

A connection begins with a greeting of 64 bytes from each side and a command READY from each; then
frames follow, several of which may be one message. https://rfc.zeromq.org/spec/23
"""

from __future__ import annotations

from enum import IntFlag
import struct

GREETING_BYTES = 64
# of the commands of others: READY with an identity, PING
COMMAND_BYTES = 4096
# short frames have one byte of length
SHORT_BYTES = 255
IDENTITY_BYTES = 255
# which sockets a ROUTER socket serves
PEERS = (b'REQ', b'DEALER')
ERROR, PING, PONG, READY = b'ERROR', b'PING', b'PONG', b'READY'


class ZmtpError(Exception):
    """The peer does not speak ZMTP 3 with the mechanism NULL; the text says why."""


class Flag(IntFlag):
    MORE = 1
    LONG = 2
    COMMAND = 4


def greeting() -> bytes:
    """Return the greeting of this side: version 3.1, mechanism NULL."""
    signature, version = b'\xff' + bytes(8) + b'\x7f', bytes([3, 1])
    return (signature + version + b'NULL'.ljust(20, b'\0')).ljust(GREETING_BYTES, b'\0')


def check_greeting(data: bytes) -> None:
    """Raise ZmtpError for another protocol, version or mechanism."""
    if data[0] != 0xFF or not data[9] & 1:
        raise ZmtpError('it does not speak ZeroMQ')
    if data[10] < 3:
        raise ZmtpError(f'it speaks version {data[10]} of ZMTP, 3 is needed (ZeroMQ 4)')
    mechanism = data[12:32].rstrip(b'\0')
    if mechanism != b'NULL':
        raise ZmtpError(f'its mechanism is {mechanism[:20]!r}, only NULL is served')


def frame(data: bytes, flags: int = 0) -> bytes:
    """Return a frame."""
    if len(data) > SHORT_BYTES:
        return struct.pack('>BQ', flags | Flag.LONG, len(data)) + data
    return struct.pack('>BB', flags, len(data)) + data


def command(name: bytes, body: bytes = b'') -> bytes:
    """Return the frame of a command."""
    return frame(bytes([len(name)]) + name + body, Flag.COMMAND)


def ready() -> bytes:
    """Return the READY of this side."""
    properties = (b'Socket-Type', b'ROUTER'), (b'Identity', b'')
    parts = [bytes([len(n)]) + n + struct.pack('>I', len(v)) + v for n, v in properties]
    return command(READY, b''.join(parts))


def error(reason: str) -> bytes:
    """Return the command that refuses a peer."""
    text = reason.encode('ascii', 'replace')[:SHORT_BYTES]
    return command(ERROR, bytes([len(text)]) + text)


def split_command(data: bytes) -> tuple[bytes, bytes]:
    """Return name and body of a command. Raises ZmtpError."""
    if not data or len(data) < 1 + data[0]:
        raise ZmtpError('a command is shorter than its name')
    return data[1 : 1 + data[0]], data[1 + data[0] :]


def read_ready(body: bytes) -> bytes:
    """Return the identity in the READY of a peer, empty without one. Raises ZmtpError."""
    properties = _properties(body)
    kind = properties.get(b'socket-type', b'')
    if kind not in PEERS:
        raise ZmtpError(f'its socket is {kind[:20]!r}, REQ and DEALER are served')
    identity = properties.get(b'identity', b'')
    if len(identity) > IDENTITY_BYTES:
        raise ZmtpError(f'its identity has {len(identity)} bytes, {IDENTITY_BYTES} are allowed')
    return identity


def _properties(body: bytes) -> dict[bytes, bytes]:
    found, at = {}, 0
    while at < len(body):
        name_end = at + 1 + body[at]
        value_at = name_end + 4
        if value_at > len(body):
            raise ZmtpError('READY is cut off')
        (size,) = struct.unpack_from('>I', body, name_end)
        if size > len(body) - value_at:
            raise ZmtpError('READY is cut off')
        found[body[at + 1 : name_end].lower()] = body[value_at : value_at + size]
        at = value_at + size
    return found


def pong(ping: bytes) -> bytes:
    """Return the reply to the body of a PING: its context, after two bytes of time to live."""
    return command(PONG, ping[2:18])

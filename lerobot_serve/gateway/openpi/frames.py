# SPDX-License-Identifier: Apache-2.0
"""
Frames of the websocket protocol (RFC 6455), as a server reads and writes them.

The payload is received into the buffer of its message, and unmasked there piece by piece, while
the rest arrives. The reader compares the announced size with its limit before it makes the buffer;
the pages of a buffer take memory only as bytes arrive. Pure; the event loop calls.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np

from lerobot_serve.arrays import Uint8Array

CONTROL_LIMIT_BYTES, HEAD_BYTES, MASK_BYTES = 125, 14, 4
# what is received at once: of the head of a frame and what follows it, and of its payload
HEAD_PIECE_BYTES, PAYLOAD_PIECE_BYTES = 1 << 16, 1 << 20
WORD_BYTES = 4
# a message of more pieces is not one of a policy client
FRAGMENTS_LIMIT = 1024


class Opcode(IntEnum):
    """What a frame carries."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


OPCODES = frozenset(map(int, Opcode))


class CloseCode(IntEnum):
    """Why a connection ends."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    TOO_BIG = 1009


class FrameError(Exception):
    """The peer broke the protocol or a limit; `code` is for the close frame."""

    def __init__(self, code: CloseCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class FrameReader:
    """Reads the stream of one client."""

    def __init__(
        self,
        limit_bytes: int,
        on_message: Callable[[memoryview, Opcode], object],
        on_control: Callable[[bytes, Opcode], object],
    ) -> None:
        """The message is that of `on_message`, from then on."""
        self._limit_bytes, self._on_message, self._on_control = limit_bytes, on_message, on_control
        self._head, self._piece = bytearray(), memoryview(bytearray(HEAD_PIECE_BYTES))
        self._buffer: Uint8Array | None = None
        self._view, self._have = memoryview(b''), 0
        self._mask, self._unmasked = np.uint32(0), 0
        self._opcode, self._is_final = Opcode.BINARY, True
        self._message_opcode: Opcode | None = None
        self._fragments: list[memoryview] = []

    @property
    def is_inside_message(self) -> bool:
        """Whether a message has begun and is not complete."""
        return bool(self._head) or self._buffer is not None or self._message_opcode is not None

    def free_space(self) -> memoryview:
        """Return where the next bytes are to be received; `received` must follow."""
        if self._buffer is None:
            return self._piece
        return self._view[self._have : self._have + PAYLOAD_PIECE_BYTES]

    def received(self, count: int) -> None:
        """Read so many bytes of `free_space`. Raises FrameError as `feed` does."""
        if self._buffer is None:
            self.feed(self._piece[:count])
        else:
            self._advance(self._have + count)

    def feed(self, data: bytes | memoryview) -> None:
        """Read received bytes. Raises FrameError; the reader must not be fed after it."""
        rest = memoryview(data)
        while rest:
            rest = self._read_head(rest) if self._buffer is None else self._read_payload(rest)

    def _read_head(self, data: memoryview) -> memoryview:
        """Return what follows the head of a frame, nothing while the head is incomplete."""
        had = len(self._head)
        self._head += data[: HEAD_BYTES - had]
        if len(self._head) < 2:
            return data[len(data) :]
        size_bytes = {126: 2, 127: 8}.get(self._head[1] & 0x7F, 0)
        end = 2 + size_bytes + MASK_BYTES
        self._check_start(self._head[0], self._head[1])
        if len(self._head) < end:
            return data[len(data) :]
        size = int.from_bytes(self._head[2 : 2 + size_bytes], 'big')
        self._begin(size if size_bytes else self._head[1] & 0x7F, bytes(self._head[end - 4 : end]))
        self._head.clear()
        return data[end - had :]

    def _check_start(self, first: int, second: int) -> None:
        if first & 0x70 or (first & 0x0F) not in OPCODES:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f'the frame begins with 0x{first:02x}')
        if not second & 0x80:
            raise FrameError(CloseCode.PROTOCOL_ERROR, 'the frame of a client is not masked')
        self._opcode, self._is_final = Opcode(first & 0x0F), bool(first & 0x80)
        if self._opcode >= Opcode.CLOSE and not (
            self._is_final and (second & 0x7F) <= CONTROL_LIMIT_BYTES
        ):
            raise FrameError(CloseCode.PROTOCOL_ERROR, 'a control frame is too long or in pieces')

    def _begin(self, size: int, mask: bytes) -> None:
        """Begin the payload of a frame."""
        if self._opcode < Opcode.CLOSE:
            self._check_order()
            self._check_size(size)
        # whole words, so that it is unmasked in words
        self._buffer = np.empty((size + 3) // 4 * 4, np.uint8)
        self._view, self._have = self._buffer.data[:size], 0
        self._mask, self._unmasked = np.frombuffer(mask, np.uint32)[0], 0
        if not size:
            self._end()

    def _check_order(self) -> None:
        is_inside = self._message_opcode is not None
        if is_inside is not (self._opcode == Opcode.CONTINUATION):
            raise FrameError(CloseCode.PROTOCOL_ERROR, 'a message in pieces is out of order')
        if not is_inside:
            self._message_opcode = self._opcode

    def _check_size(self, size: int) -> None:
        size += sum(map(len, self._fragments))
        if size > self._limit_bytes or len(self._fragments) >= FRAGMENTS_LIMIT:
            raise FrameError(
                CloseCode.TOO_BIG,
                f'the message has {size} bytes or more, {self._limit_bytes} are allowed',
            )

    def _read_payload(self, data: memoryview) -> memoryview:
        piece = data[: len(self._view) - self._have]
        end = self._have + len(piece)
        self._view[self._have : end] = piece
        self._advance(end)
        return data[len(piece) :]

    def _advance(self, end: int) -> None:
        """Unmask what was received up to `end`; a word that is cut off waits for its rest."""
        assert self._buffer is not None
        self._have = end
        is_complete = end == len(self._view)
        whole = self._buffer.size if is_complete else end // WORD_BYTES * WORD_BYTES
        words = self._buffer[self._unmasked : whole].view(np.uint32)
        np.bitwise_xor(words, self._mask, out=words)
        self._unmasked = whole
        if is_complete:
            self._end()

    def _end(self) -> None:
        """End a frame, and with its last piece a message."""
        payload, self._buffer, self._view = self._view, None, memoryview(b'')
        if self._opcode >= Opcode.CLOSE:
            self._on_control(bytes(payload), self._opcode)
            return
        if not self._is_final:
            self._fragments.append(payload)
            return
        opcode, self._message_opcode = self._message_opcode, None
        if self._fragments:
            payload = memoryview(b''.join([*self._fragments, payload]))
            self._fragments = []
        assert opcode is not None
        self._on_message(payload, opcode)


def frame(opcode: Opcode, payload: bytes) -> bytes:
    """Return one frame of the server, which is not masked."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, size))
    elif size < 1 << 16:
        head = bytes((0x80 | opcode, 126)) + size.to_bytes(2, 'big')
    else:
        head = bytes((0x80 | opcode, 127)) + size.to_bytes(8, 'big')
    return head + payload


def close_frame(code: CloseCode, reason: str = '') -> bytes:
    """Return the frame that ends a connection; a long reason is cut."""
    text = reason.encode()[: CONTROL_LIMIT_BYTES - 2].decode(errors='ignore')
    return frame(Opcode.CLOSE, code.to_bytes(2, 'big') + text.encode())

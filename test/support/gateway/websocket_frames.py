# SPDX-License-Identifier: Apache-2.0
"""Frames as a client of a websocket writes them."""

from __future__ import annotations

from aiohttp._websocket.helpers import websocket_mask

from lerobot_serve.gateway.openpi.frames import frame, Opcode

MASK = b'\x12\x34\x56\x78'


def masked(payload: bytes, opcode: int = Opcode.BINARY, final: bool = True) -> bytes:
    """Return a frame of a client."""
    whole = bytearray(frame(opcode, payload))
    head = len(whole) - len(payload)
    body = bytearray(payload)
    websocket_mask(MASK, body)
    whole[0] = (0x80 if final else 0) | opcode
    whole[1] |= 0x80
    return bytes(whole[:head]) + MASK + bytes(body)

# SPDX-License-Identifier: Apache-2.0
"""The pieces of one observation, put together within bounds of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable

from lerobot_serve.peer_formats.array_types import PeerFormatError
from lerobot_serve.peer_formats.lerobot_messages import read_piece, TransferState


async def read_pieces(pieces: AsyncIterable[bytes], most_bytes: int, limit_s: float) -> memoryview:
    """
    Return the bytes of an observation. Raises PeerFormatError for one that is too large or has no
    end, TimeoutError for one that takes longer than `limit_s`.
    """
    async with asyncio.timeout(limit_s):
        return await _joined(pieces, most_bytes)


async def _joined(pieces: AsyncIterable[bytes], most_bytes: int) -> memoryview:
    parts: list[memoryview] = []
    size = 0
    async for message in pieces:
        piece = read_piece(message)
        if piece.state is TransferState.UNKNOWN:
            raise PeerFormatError('transfer_state is missing')
        if piece.state is TransferState.BEGIN:
            parts, size = [], 0
        parts.append(piece.data)
        size += len(piece.data)
        if size > most_bytes:
            raise PeerFormatError(
                f'the observation has more than {most_bytes} bytes; send smaller images, or raise '
                'lerobot.max_message_mb'
            )
        if piece.state is TransferState.END:
            # one piece is not copied
            return parts[0] if len(parts) == 1 else memoryview(b''.join(parts))
    raise PeerFormatError('the observation has no end: no piece with TRANSFER_END came')

# SPDX-License-Identifier: Apache-2.0
"""Ports of Fast DDS with the fault that a sender leaves which is killed while it sends."""

from __future__ import annotations

import os
from pathlib import Path
import time

import pytest

from lerobot_serve.shared_memory import ports
from support.middleware.opened_port import layout_of, opened_port

NUMBER, CELLS, CHECK_MS = 7411, 8, 1000
BEGIN, CELLS_AT = 256, 1024
LAST_TURN = 1 << 31
TRIES = 10


def block(file: Path, number: int) -> None:
    """Leave a cell of a port in use claimed and not filled, as a sender that is killed there."""
    for _ in range(TRIES):
        claim_cell(file, number)
        # a message that passed at the same time may have undone it
        time.sleep(0.05)
        if ports.examine(file, number):
            return
    pytest.fail(f'{file} cannot be blocked')


def claim_cell(file: Path, number: int) -> None:
    """Claim the next cell of a port."""
    with opened_port(file) as (handle, memory):
        ring_at = layout_of(memory, number).ring_at
        claim, free, cells, listeners = ports.RING.unpack_from(memory, ring_at)
        claimed = ports.RING.pack(following(claim, cells), free - 1, cells, listeners)
        os.pwrite(handle, claimed[:8], ring_at)


def following(claim: int, cells: int) -> int:
    """Return the cell after this one; the highest bit changes with each turn of the ring."""
    turn, cell = claim & LAST_TURN, (claim & ports.INDEX_MASK) + 1
    return turn | cell if cell < cells else turn ^ LAST_TURN


def port_bytes(
    claim: int = 0, free: int = CELLS, unread: dict[int, int] | None = None, flags: int = 7
) -> bytearray:
    """Return a port of eight cells; `unread` has the listeners that have yet to read a cell."""
    ring_at = CELLS_AT + CELLS * ports.CELL_BYTES + 4
    memory = bytearray(ring_at + ports.RING.size + 8)
    header = (0, 1, CELLS_AT, ring_at, NUMBER, 1, CHECK_MS, CHECK_MS // 3, CELLS, 1, flags)
    ports.HEADER.pack_into(memory, BEGIN, *header)
    ports.RING.pack_into(memory, ring_at, claim, free, CELLS, 1)
    for cell, count in (unread or {}).items():
        ports.COUNT.pack_into(memory, CELLS_AT + cell * ports.CELL_BYTES, count)
    return memory

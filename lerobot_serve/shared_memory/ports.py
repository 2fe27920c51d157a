# SPDX-License-Identifier: Apache-2.0
"""
Find the ports of Fast DDS that a killed sender has blocked, and have them renewed.

A participant receives through its ports: files in /dev/shm, each with a ring of cells. A sender
claims a cell and then fills it. Killed in between, it leaves a cell that nobody fills: the reader
waits for it for good, the ring becomes full, and whatever is sent to the process is lost. Fast DDS
finds nothing wrong with such a port.

It renews a port that is marked as damaged: the reader within 0.4 s, a sender with its next
message. This mark is all that is written here. A file with another layout than that of Fast DDS
2.14 and 3 is left alone. Nothing here raises; other threads of the process may open and close
ports.
"""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
import re
import struct
from typing import NamedTuple

from lerobot_serve.shared_memory.segments import list_locked_files, LOCK_FILE_SUFFIX

LOCK_FILE = re.compile(r'.*/fast(?:rtps|dds)_port([0-9]+)' + LOCK_FILE_SUFFIX)
# what a port begins with: last check, references, place of the cells, place of the ring, number,
# listeners, two timeouts [ms], cells, waiting listeners, flags
HEADER = struct.Struct('<q10I')
NUMBER_OFFSET, FLAGS_OFFSET = 20, 44
IS_OK, KNOWN_FLAGS = 1, 7
# next cell to claim, whose highest bit changes with each turn; free cells; cells; listeners
RING = struct.Struct('<4I')
INDEX_MASK = 0x7FFFFFFF
# of a cell, whose first field counts the listeners that have yet to read it
CELL_BYTES = 20
COUNT = struct.Struct('<I')
FILE_BYTES_LIMIT = 16 << 20
# the ports of a process seldom change, and listing its files takes three times as long as a check
CHECKS_PER_LISTING = 10


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a port are in its file."""

    flags_at: int
    cells_at: int
    ring_at: int
    cells: int


class BlockedPort(NamedTuple):
    """A port, the cell for which its reader waits, and the messages in it."""

    file: Path
    cell: int
    messages: int


def find_layout(memory: bytes, number: int) -> Layout | None:
    """Return the layout of the port of this number; None where it has none that is known."""
    needle = COUNT.pack(number)
    at = memory.find(needle)
    while at >= 0:
        if found := _layout_at(memory, at - NUMBER_OFFSET):
            return found
        at = memory.find(needle, at + 1)
    return None


def _layout_at(memory: bytes, begin: int) -> Layout | None:
    size = len(memory)
    if begin < 0 or begin % 8 or begin + HEADER.size > size:
        return None
    _, _, cells_at, ring_at, _, _, check_ms, wait_ms, cells, _, flags = HEADER.unpack_from(
        memory, begin
    )
    is_header = cells and wait_ms == check_ms // 3 and flags & ~KNOWN_FLAGS == 0
    in_file = cells_at + cells * CELL_BYTES <= ring_at <= size - RING.size
    if not (is_header and in_file):
        return None
    # the allocator puts less than one more cell between the two
    is_dense = ring_at - cells_at < cells * (CELL_BYTES + 1)
    _, free, total, _ = RING.unpack_from(memory, ring_at)
    if not (is_dense and total == cells and free <= total):
        return None
    return Layout(begin + FLAGS_OFFSET, cells_at, ring_at, cells)


def unfilled_cell(memory: bytes, layout: Layout) -> tuple[int, int] | None:
    """
    Return the cell that is next for the reader, was claimed and is not filled, and how many were
    claimed; None if there is none. For a moment that is so with each message.
    """
    claim, free, total, _ = RING.unpack_from(memory, layout.ring_at)
    claimed = total - free
    if not 0 < claimed <= layout.cells or not memory[layout.flags_at] & IS_OK:
        return None
    cell = ((claim & INDEX_MASK) - claimed) % layout.cells
    (unread,) = COUNT.unpack_from(memory, layout.cells_at + cell * CELL_BYTES)
    return None if unread else (cell, claimed)


def ports_of(process: int | None = None) -> dict[Path, int]:
    """Return the ports, with their numbers, of a process, by default this one."""
    found = (LOCK_FILE.fullmatch(each) for each in list_locked_files(LOCK_FILE, process))
    return {Path(each[0].removesuffix(LOCK_FILE_SUFFIX)): int(each[1]) for each in found if each}


class PortGuard:
    """Has the ports of this process renewed that stay blocked from one check to the next."""

    def __init__(self) -> None:
        self._ports: dict[Path, int] = {}
        self._checks = 0
        self._blocked: dict[Path, BlockedPort] = {}

    def check(self) -> list[BlockedPort]:
        """Mark ports that were blocked at the last check, too, by the same cell; return them."""
        if self._checks % CHECKS_PER_LISTING == 0:
            self._ports = ports_of()
        self._checks += 1
        before, self._blocked = self._blocked, {}
        marked = []
        for file, number in self._ports.items():
            known = before.get(file)
            blocked = examine(file, number, mark=known.cell if known else None)
            if blocked and known and blocked.cell == known.cell:
                marked.append(blocked)
            elif blocked:
                self._blocked[file] = blocked
        return marked


def examine(file: Path, number: int, *, mark: int | None = None) -> BlockedPort | None:
    """
    Return whether a cell blocks a port; mark the port as damaged if it is the cell `mark`.
    """
    # not mapped: a file that somebody shortens would end this process
    try:
        handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        memory = os.pread(handle, FILE_BYTES_LIMIT, 0)
        layout = find_layout(memory, number)
        found = layout and unfilled_cell(memory, layout)
        if not (layout and found):
            return None
        if found[0] == mark:
            os.pwrite(handle, bytes((memory[layout.flags_at] & ~IS_OK,)), layout.flags_at)
        return BlockedPort(file, *found)
    except OSError:
        return None
    finally:
        os.close(handle)

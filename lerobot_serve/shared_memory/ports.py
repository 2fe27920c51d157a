# SPDX-License-Identifier: Apache-2.0
"""
Find the ports of Fast DDS that a killed sender has blocked, and have one's own renewed.

A participant receives through its ports: files in /dev/shm, each with a ring of cells. A sender
claims a cell and then fills it. Killed in between, it leaves a cell that is never filled: the
reader waits for it for good, the ring becomes full, and whatever is sent to the process is lost.
Fast DDS finds nothing wrong with such a port.

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
import time
from typing import NamedTuple

from lerobot_serve.shared_memory.segments import list_locked_files, LOCK_FILE_SUFFIX

LOCK_FILE = re.compile(r'.*/fast(?:rtps|dds)_port([0-9]+)' + LOCK_FILE_SUFFIX)
# what a port begins with: last check, references, place of the cells, place of the ring, number,
# listeners, two timeouts [ms], cells, waiting listeners, flags
HEADER = struct.Struct('<q10I')
NUMBER_OFFSET, LISTENERS_OFFSET, FLAGS_OFFSET = 20, 24, 44
# is in order, has one reader, is read: what Fast DDS sets once a reader holds the lock file
IS_OK, IN_USE, KNOWN_FLAGS = 1, 7, 7
# next cell to claim, whose highest bit changes with each turn; free cells; cells; listeners
RING = struct.Struct('<4I')
INDEX_MASK = 0x7FFFFFFF
# of a cell, whose first field counts the listeners that have yet to read it
CELL_BYTES = 20
COUNT = struct.Struct('<I')
FILE_BYTES_LIMIT = 16 << 20
# the ports of a process seldom change, and listing its files takes three times as long as a check
CHECKS_PER_LISTING = 10
# most ports get a message within this time
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a port are in its file."""

    flags_at: int
    cells_at: int
    ring_at: int
    cells: int


class UnfilledCell(NamedTuple):
    """
    The first claimed cell of a ring that is not filled. `claim` is the next cell that a sender
    claims, `claimed` how many are claimed, of `cells`.
    """

    cell: int
    claim: int
    claimed: int
    cells: int

    def blocks(self, before: UnfilledCell) -> bool:
        """
        Return whether this cell blocks its port since another look at it.

        Cells that an earlier owner of the port left claimed take room, but its reader is behind
        them: with each message the first one is another. Without a message both look the same, and
        with a full ring there can be none.
        """
        return self.cell == before.cell and (
            self.claim != before.claim or self.claimed == before.claimed == self.cells
        )


class BlockedPort(NamedTuple):
    """A port that was marked, and how many messages are in it at most."""

    file: Path
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


def unfilled_cell(memory: bytes, layout: Layout) -> UnfilledCell | None:
    """
    Return the first claimed cell if it is not filled, else None. For a moment each message is such
    a cell.
    """
    claim, free, total, _ = RING.unpack_from(memory, layout.ring_at)
    claimed = total - free
    if not 0 < claimed <= layout.cells or not memory[layout.flags_at] & IS_OK:
        return None
    cell = ((claim & INDEX_MASK) - claimed) % layout.cells
    (unread,) = COUNT.unpack_from(memory, layout.cells_at + cell * CELL_BYTES)
    return None if unread else UnfilledCell(cell, claim, claimed, layout.cells)


def is_in_use(memory: bytes, layout: Layout) -> bool:
    """Return whether a port is in order and has a reader, which has none when it ended orderly."""
    (listeners,) = COUNT.unpack_from(memory, layout.flags_at - FLAGS_OFFSET + LISTENERS_OFFSET)
    return memory[layout.flags_at] == IN_USE and listeners > 0


def read_port(file: Path) -> bytes:
    """Return what is in the file of a port; empty where it cannot be read."""
    # not mapped: a file that another process shortens would end this one
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b''
    try:
        return os.pread(handle, FILE_BYTES_LIMIT, 0)
    except OSError:
        return b''
    finally:
        os.close(handle)


def ports_of(process: int | None = None) -> dict[Path, int]:
    """Return the ports, with their numbers, of a process, by default this one."""
    found = (LOCK_FILE.fullmatch(each) for each in list_locked_files(LOCK_FILE, process))
    return {Path(each[0].removesuffix(LOCK_FILE_SUFFIX)): int(each[1]) for each in found if each}


class PortGuard:
    """Has the ports of this process renewed that a cell blocks from one check to another."""

    def __init__(self) -> None:
        self._ports: dict[Path, int] = {}
        self._checks = 0
        self._unfilled: dict[Path, UnfilledCell] = {}

    def check(self) -> list[BlockedPort]:
        """Mark the ports that are blocked since the last check; return them."""
        if self._checks % CHECKS_PER_LISTING == 0:
            self._ports = ports_of()
        self._checks += 1
        before, self._unfilled = self._unfilled, {}
        marked = []
        for file, number in self._ports.items():
            known = before.get(file)
            found = examine(file, number, known)
            if found and known and found.blocks(known):
                marked.append(BlockedPort(file, found.claimed))
            elif found:
                self._unfilled[file] = found
        return marked


def examine(file: Path, number: int, known: UnfilledCell | None = None) -> UnfilledCell | None:
    """
    Return the unfilled cell of a port; mark the port as damaged if it blocks it since `known`.
    """
    # not mapped: a file that another process shortens would end this one
    try:
        handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        memory = os.pread(handle, FILE_BYTES_LIMIT, 0)
        layout = find_layout(memory, number)
        found = layout and unfilled_cell(memory, layout)
        if layout and found and known and found.blocks(known):
            clear_flag(handle, memory, layout)
        return found or None
    except OSError:
        return None
    finally:
        os.close(handle)


def clear_flag(handle: int, memory: bytes, layout: Layout) -> None:
    """Mark a port, of which `memory` was read, as damaged. Raises OSError."""
    os.pwrite(handle, bytes((memory[layout.flags_at] & ~IS_OK,)), layout.flags_at)


def deaf_processes(look_s: float = LOOK_S) -> dict[int, str]:
    """
    Return the processes of this user with a blocked port, by number, and their command lines.

    Looks twice, `look_s` apart, if any port has an unfilled cell, else once.
    """
    before = {
        (process, file): (number, found)
        for process in _processes()
        for file, number in ports_of(process).items()
        if (found := examine(file, number))
    }
    if before:
        time.sleep(look_s)
    return {
        process: _command_line(process)
        for (process, file), (number, known) in before.items()
        if (found := examine(file, number)) and found.blocks(known)
    }


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir('/proc') if name.isdigit()]
    except OSError:
        return []


def _command_line(process: int) -> str:
    try:
        words = Path(f'/proc/{process}/cmdline').read_bytes().split(b'\0')
    except OSError:
        return ''
    return b' '.join(words).decode(errors='replace').strip()

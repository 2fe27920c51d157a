# SPDX-License-Identifier: Apache-2.0
"""
Have the ports of killed processes renewed, so that nothing is sent to them for good.

Fast DDS marks a port as damaged when its owner stands still while it waits for a message or while
it reads one. A process that is killed at an instant between the two leaves a port with which
Fast DDS finds nothing wrong. The next process that takes the number replaces the file; a sender
that has the old one mapped fills it up, and then drops whatever it sends to the new process: that
discovery works but no data arrives.

`mark_dead_ports` marks such ports before this process takes a number. `ReplacedPorts` finds those
that another process has replaced, with the files that this process has opened before. As in
`ports`, the mark is all that is written, a file with another layout is left alone, nothing raises,
and other threads may open and close ports.

Find what is wrong with the ports of this process, and wait until they are sound.

A process whose port has no file any more, or one that stays damaged, hears nothing: what is sent
to it goes elsewhere. Rarely one starts so beside a process that was killed.

Fast DDS closes a port in one thread while the thread that reads it may be replacing it, because it
is marked as damaged or because its lock belongs to a process that was killed. Nothing protects the
one from the other: the process then ends with a segmentation fault, or stands still for good. The
reader replaces such a port within a few seconds; after that it is safe to close. Nothing is
written here, and nothing raises. A port with another layout is taken for sound.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import platform
import re
import stat
import time

from lerobot_serve.shared_memory.ports import (
    clear_flag,
    COUNT,
    FILE_BYTES_LIMIT,
    find_layout,
    is_in_use,
    Layout,
    ports_of,
    read_port,
)
from lerobot_serve.shared_memory.segments import (
    FOLDER,
    LOCK_FILE_SUFFIX,
    read_memory_map,
    take_lock,
)

PORT_NAME = r'fast(?:rtps|dds)_port[0-9]{1,9}'
PORT = re.compile(PORT_NAME)
# inode and path of a mapped file
MAPPED = re.compile(rf' ([0-9]+) +({FOLDER}/{PORT_NAME})$', re.M)
REPLACED = ' (deleted)'
NOT_FOLLOWED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def mark_dead_ports(folder: Path = FOLDER) -> list[Path]:
    """
    Mark the ports of this user whose owner has ended; return them. Before ROS starts.

    The kernel drops the lock of a port together with the process that holds it.
    """
    found = []
    # as in `remove_dead_segments`, this must not keep a node from starting
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if PORT.fullmatch(name) and _mark_if_dead(folder / name):
                found.append(folder / name)
    return found


def _mark_if_dead(file: Path) -> bool:
    handle = _open_own(file)
    if handle is None:
        return False
    try:
        # of a file that is opened before: one that replaces it meanwhile is not marked
        return _mark(handle, number_of(file), unless=lambda: _is_locked(file))
    finally:
        os.close(handle)


def _is_locked(port: Path) -> bool:
    """Return whether a process holds the lock of a port, or may; it may have no file."""
    try:
        handle = take_lock(Path(f'{port}{LOCK_FILE_SUFFIX}'))
    except FileNotFoundError:
        return False
    if handle is None:
        return True
    os.close(handle)
    return False


def _open_own(file: Path) -> int | None:
    """Return a handle of a regular file of this user, else None."""
    try:
        handle = os.open(file, os.O_RDWR | NOT_FOLLOWED)
    except OSError:
        return None
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
        return handle
    os.close(handle)
    return None


def _mark(handle: int, number: int, unless: Callable[[], bool] = lambda: False) -> bool:
    """
    Mark a port in use as damaged; return whether it was one.

    `unless` is called for those only, once they are read: while it holds a lock, a process that
    starts cannot have the number, and one that takes over a port holds the lock before it counts
    as its reader.
    """
    try:
        memory = os.pread(handle, FILE_BYTES_LIMIT, 0)
        layout = find_layout(memory, number)
        if not layout or not is_in_use(memory, layout) or unless():
            return False
        clear_flag(handle, memory, layout)
    except OSError:
        return False
    return True


class ReplacedPorts:
    """
    The ports that this process has mapped: those to which it sends, and its own. One thread.

    A port whose file is replaced is marked with the second check after that: Fast DDS itself needs
    a second or two to find most of them.
    """

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}
        self._seen: set[Path] = set()

    def check(self, memory_map: str | None = None) -> list[Path]:
        """Mark the ports that were replaced before the last check; return them."""
        memory_map = read_memory_map() if memory_map is None else memory_map
        mapped = {Path(file): int(inode) for inode, file in MAPPED.findall(memory_map)}
        marked = []
        for file, handle in list(self._handles.items()):
            if os.fstat(handle).st_nlink and file in mapped:
                continue
            is_replaced = f' {file}{REPLACED}\n' in memory_map
            if is_replaced and file not in self._seen:
                self._seen.add(file)
                continue
            if is_replaced and _mark(handle, number_of(file)):
                marked.append(file)
            self._forget(file)
        for file in mapped.keys() - self._handles.keys():
            opened = _open_own(file)
            # another process may have replaced it since the map was read
            if opened is not None and os.fstat(opened).st_ino != mapped[file]:
                os.close(opened)
            elif opened is not None:
                self._handles[file] = opened
        return marked

    def close(self) -> None:
        """Close all files."""
        for file in list(self._handles):
            self._forget(file)

    def _forget(self, file: Path) -> None:
        self._seen.discard(file)
        os.close(self._handles.pop(file))


def number_of(file: Path) -> int:
    """Return the number of a port, by its name."""
    return int(file.name.rpartition('port')[2])


# what a reader needs: a third of a second until it looks, and a second for each of two locks
RENEWAL_S = 5.0
LOOK_PERIOD_S = 0.02
# a port has the lock, then 1024 states of listeners, then the name of the domain
STATES_BYTES = 1024 * 20
DOMAIN_NAME = re.compile(rb'fast(?:rtps|dds)\0')
# of glibc: the first field of a lock is 0 while it is free, and this one its kind
LOCK_BYTES = {'x86_64': 40, 'aarch64': 48}.get(platform.machine(), 0)
KIND_OFFSET, SHARED_BY_PROCESSES = 16, 128


def wait_until_sound(limit_s: float = RENEWAL_S) -> bool:
    """
    Return whether all ports of this process are sound; wait `limit_s` for that at most.

    Usually there is nothing to wait for, and a look takes a third of a millisecond.
    """
    end_s = time.monotonic() + limit_s
    known: dict[Path, int] = {}
    has_waited = False
    while True:
        if not find_problem(known):
            if has_waited:
                # a reader takes the new port just after it is complete
                time.sleep(LOOK_PERIOD_S)
            return True
        if time.monotonic() >= end_s:
            return False
        has_waited = True
        time.sleep(LOOK_PERIOD_S)


def find_problem(known: dict[Path, int]) -> str:
    """
    Return what is wrong with a port of this process; empty for nothing. `known` are the ports of
    earlier calls: one has no lock file, by which it is found, for the moment of its replacement.
    """
    known |= ports_of()
    for file, number in known.items():
        if problem := _problem(file, number):
            return f'{file.name} {problem}'
    return ''


def _problem(file: Path, number: int) -> str:
    memory = read_port(file)
    if not memory:
        return 'has no file'
    layout = find_layout(memory, number)
    if not layout:
        return ''
    if not is_in_use(memory, layout):
        return 'is marked as damaged or not read'
    return 'is locked' if is_locked(memory, layout) else ''


def is_locked(memory: bytes, layout: Layout) -> bool:
    """Return whether a process holds the lock of a port. A sender does so for microseconds."""
    name = DOMAIN_NAME.search(memory, layout.flags_at + STATES_BYTES)
    begin = name.start() - STATES_BYTES - LOCK_BYTES if name and LOCK_BYTES else 0
    if begin <= layout.flags_at:
        return False
    (kind,) = COUNT.unpack_from(memory, begin + KIND_OFFSET)
    (lock,) = COUNT.unpack_from(memory, begin)
    return bool(kind == SHARED_BY_PROCESSES and lock)

# SPDX-License-Identifier: Apache-2.0
"""
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

from pathlib import Path
import platform
import re
import time

from lerobot_serve.shared_memory.ports import (
    COUNT,
    find_layout,
    is_in_use,
    Layout,
    ports_of,
    read_port,
)

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

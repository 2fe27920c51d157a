# SPDX-License-Identifier: Apache-2.0
"""
Find and remove the shared-memory segments of Fast DDS.

A participant creates a segment of 8 MiB and more in /dev/shm, and removes it when it is destroyed.
A killed process does not remove it, and a node that is restarted every few seconds fills the
memory of a robot within a day. Each process therefore removes the segments of ended processes when
it starts, and its own when it ends. Main thread. Other systems than Linux have no such segments.
"""

from __future__ import annotations

from collections.abc import Collection
import contextlib
import fcntl
import os
from pathlib import Path
import re
import time

FOLDER = Path('/dev/shm')
NAME = r'fast(?:rtps|dds)_[0-9a-f]+'
MAPPED = re.compile(rf'^([0-9a-f]+)-([0-9a-f]+) .*({FOLDER}/{NAME})(?: \(deleted\))?$', re.M)
# a participant holds this file open and locked for the lifetime of its segment
LOCK_FILE_SUFFIX = '_el'
# Fast DDS creates the lock file before it locks it
MIN_AGE_S = 10.0


def own_segments(memory_map: str, open_files: Collection[str]) -> dict[Path, int]:
    """
    Return the segments of this process and their sizes in bytes.

    `memory_map` is its /proc/PID/maps, which also lists the segments of peers.
    """
    return {
        Path(path): int(end, 16) - int(begin, 16)
        for begin, end, path in MAPPED.findall(memory_map)
        if path + LOCK_FILE_SUFFIX in open_files
    }


def list_open_files() -> set[str]:
    """Return the paths of the open files of this process; empty where the system hides them."""
    paths = set()
    for link in Path('/proc/self/fd').glob('*'):
        # another thread may close a file meanwhile
        with contextlib.suppress(OSError):
            paths.add(os.readlink(link).removesuffix(' (deleted)'))
    return paths


def read_memory_map() -> str:
    """Return the memory map of this process; empty where the system has none."""
    try:
        return Path('/proc/self/maps').read_text()
    except OSError:
        return ''


def remove_own_segments() -> None:
    """
    Remove the segments of this process, which is about to end without destroying its participants.
    """
    for segment in own_segments(read_memory_map(), list_open_files()):
        _remove(segment)


def remove_dead_segments(folder: Path = FOLDER, min_age_s: float = MIN_AGE_S) -> int:
    """
    Remove the segments of ended processes of this user; return how many.

    The kernel drops a lock together with the process that holds it: a segment whose lock file can
    be locked has no owner. Segments of running, stopped and foreign processes stay.
    """
    return sum(
        _remove_if_dead(lock_file.with_name(lock_file.name.removesuffix(LOCK_FILE_SUFFIX)))
        for lock_file in folder.glob(f'fast*{LOCK_FILE_SUFFIX}')
        if re.fullmatch(NAME + LOCK_FILE_SUFFIX, lock_file.name)
        and _is_own_and_old(lock_file, min_age_s)
    )


def _is_own_and_old(file: Path, min_age_s: float) -> bool:
    try:
        status = file.lstat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and time.time() - status.st_ctime >= min_age_s


def _remove_if_dead(segment: Path) -> bool:
    """Return whether the segment had no owner and is removed."""
    try:
        handle = os.open(f'{segment}{LOCK_FILE_SUFFIX}', os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(segment)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _remove(segment: Path) -> None:
    """Remove a segment, then its lock file; ignores files that another process has removed."""
    for file in (segment, Path(f'{segment}{LOCK_FILE_SUFFIX}')):
        with contextlib.suppress(OSError):
            file.unlink()

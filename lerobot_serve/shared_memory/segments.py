# SPDX-License-Identifier: Apache-2.0
"""
Find and remove the shared-memory segments of Fast DDS.

A participant creates a segment of 8 MiB and more in /dev/shm, and removes it when it is destroyed.
A process that is killed leaves it behind, and a node that is restarted every few seconds fills the
memory of a robot within a day. A node therefore removes the segments of ended processes when it
starts, and its own when it ends. Nothing here raises. Any thread. Linux only: elsewhere there is
nothing to find.
"""

from __future__ import annotations

from collections.abc import Collection
import contextlib
import fcntl
import os
from pathlib import Path
import re
import stat
import time

FOLDER = Path('/dev/shm')
ANY = re.compile('.*')
NAME = r'fast(?:rtps|dds)_[0-9a-f]+'
MAPPED = re.compile(rf'^([0-9a-f]+)-([0-9a-f]+) .*({FOLDER}/{NAME})(?: \(deleted\))?$', re.M)
# a participant holds this file open and locked for the lifetime of its segment
LOCK_FILE_SUFFIX = '_el'
LOCK_FILE = re.compile(NAME + LOCK_FILE_SUFFIX)
# process that holds an exclusive lock, in /proc/PID/fdinfo/N
LOCK_HOLDER = re.compile(r'^lock:\s+\d+: FLOCK +ADVISORY +WRITE (\d+) ', re.M)
# Fast DDS creates the lock file before it locks it
MIN_AGE_S = 10.0


def own_segments(memory_map: str, own_files: Collection[str]) -> dict[Path, int]:
    """
    Return the segments whose lock files are among `own_files`, and their sizes in bytes.

    `memory_map` is /proc/PID/maps of this process, which also lists the segments of peers.
    """
    sizes: dict[Path, int] = {}
    for begin, end, path in MAPPED.findall(memory_map):
        if path + LOCK_FILE_SUFFIX in own_files:
            sizes[Path(path)] = max(sizes.get(Path(path), 0), int(end, 16) - int(begin, 16))
    return sizes


def list_open_files() -> set[str]:
    """Return the paths of the open files of this process; none where the system hides them."""
    return set(_open_files(os.getpid()).values())


def list_locked_files(pattern: re.Pattern[str] = ANY, process: int | None = None) -> set[str]:
    """
    Return the open files of a pattern on which a process holds a lock, by default this one.

    Fast DDS opens the lock files of peers, too, to find out whether they run.
    """
    process = process or os.getpid()
    return {
        path
        for number, path in _open_files(process).items()
        if pattern.fullmatch(path) and _holds_lock(process, number)
    }


def _open_files(process: int) -> dict[str, str]:
    """Return the paths of the open files by their numbers."""
    found = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(f'/proc/{process}/fd'):
            # another thread may close a file meanwhile
            with contextlib.suppress(OSError):
                path = os.readlink(f'/proc/{process}/fd/{number}')
                found[number] = path.removesuffix(' (deleted)')
    return found


def _holds_lock(process: int, number: str) -> bool:
    try:
        text = Path(f'/proc/{process}/fdinfo/{number}').read_text()
    except OSError:
        return False
    return str(process) in LOCK_HOLDER.findall(text)


def read_memory_map() -> str:
    """Return the memory map of this process; empty where the system has none."""
    try:
        return Path('/proc/self/maps').read_text(errors='surrogateescape')
    except OSError:
        return ''


def remove_own_segments() -> None:
    """
    Remove the segments of this process, which is about to end without destroying its participants.
    """
    for segment in own_segments(read_memory_map(), list_locked_files()):
        _remove(segment)


def remove_dead_segments(folder: Path = FOLDER, min_age_s: float = MIN_AGE_S) -> int:
    """
    Remove the segments of ended processes of this user; return how many.

    The kernel drops a lock together with the process that holds it: a segment whose lock file can
    be locked has no owner. Segments of running, stopped and foreign processes stay.
    """
    removed = 0
    # cleaning must not keep a node from starting
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if LOCK_FILE.fullmatch(name) and _is_own_and_old(folder / name, min_age_s):
                removed += _remove_if_dead(folder / name.removesuffix(LOCK_FILE_SUFFIX))
    return removed


def _is_own_and_old(file: Path, min_age_s: float) -> bool:
    try:
        status = file.lstat()
    except OSError:
        return False
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
    return is_own and time.time() - status.st_ctime >= min_age_s


def take_lock(file: Path, flags: int = os.O_RDONLY) -> int | None:
    """
    Return a handle that holds the lock of a file; None while another process holds it, or may.
    `flags` open it. Raises FileNotFoundError.
    """
    try:
        # a link would lead to any file of this user, and a pipe waits for a reader
        handle = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove_if_dead(segment: Path) -> bool:
    """Return whether the segment had no owner and is removed."""
    try:
        handle = take_lock(Path(f'{segment}{LOCK_FILE_SUFFIX}'))
    except FileNotFoundError:
        return False
    if handle is None:
        return False
    try:
        return _remove(segment)
    finally:
        os.close(handle)


def _remove(segment: Path) -> bool:
    """Remove a segment, then its lock file, by which it is found; return whether it is gone."""
    try:
        segment.unlink(missing_ok=True)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        Path(f'{segment}{LOCK_FILE_SUFFIX}').unlink()
    return True

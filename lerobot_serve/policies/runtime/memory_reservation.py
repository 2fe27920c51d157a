# SPDX-License-Identifier: Apache-2.0
"""
Reserve memory for a policy before it is loaded; wait while other processes load.

Two rules for each device: the declared bytes of all policies stay below MAX_DECLARED_SHARE of the
memory, and the needed bytes, margin included, are free once running loads have finished. The
thread that loads a policy; another policy of the same process counts as those of others.

Memory reservations of the policy servers of one user, by device.

Free memory does not show a policy that is being loaded: two processes that check at once both see
it free. So each process records its reservation in a shared folder before it loads. A record is a
file that its process keeps locked: the system frees the lock when the process ends, and a record
without a lock is removed. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
import fcntl
import json
import os
from pathlib import Path
import re
import stat
import tempfile
import time

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.runtime import memory
from lerobot_serve.policies.runtime.memory import (
    declared_bytes,
    MB,
    MemoryCapacity,
    NotEnoughMemory,
)

FOLDER_NAME = 'lerobot_serve'
SUFFIX, LOCK_FILE = '.held', 'guard.lock'
NOT_IN_A_NAME = re.compile(r'[^A-Za-z0-9-]+')


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """
    The reservation of one process on a device: the declared bytes and, while it `loads`, the total
    bytes needed.
    """

    pid: int
    what: str
    declared_bytes: int
    needed_bytes: int
    loads: bool


class HeldReservation:
    """A reservation of this process until `release`; see `on_loaded`."""

    def __init__(
        self, store: ReservationStore, file: Path, descriptor: int, entry: ReservationRecord
    ) -> None:
        self._store, self._file, self._descriptor, self.entry = store, file, descriptor, entry

    def on_loaded(self) -> None:
        """The memory is in use: only the declared bytes count from now on."""
        self.entry = replace(self.entry, loads=False, needed_bytes=0)
        with self._store.locked():
            self._store.write(self._descriptor, self.entry)

    def release(self) -> None:
        """Remove the reservation; idempotent."""
        if self._descriptor >= 0:
            with self._store.locked():
                self._file.unlink(missing_ok=True)
                os.close(self._descriptor)
                self._descriptor = -1


class ReservationStore:
    """The reservations on one device, by its key."""

    def __init__(self, device: str, root: Path | None = None) -> None:
        """Raise PolicyError without a folder that only this user can write to."""
        self._folder = _own_folder(root or runtime_folder())
        self._device = NOT_IN_A_NAME.sub('-', device)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder."""
        descriptor = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def add(
        self, entry: ReservationRecord, check: Callable[[list[ReservationRecord]], None]
    ) -> HeldReservation:
        """
        Add a reservation if `check`, given those of the others, does not raise; atomic.
        """
        with self.locked():
            check(self._others())
            descriptor, name = tempfile.mkstemp(SUFFIX, f'{self._device}-', self._folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self.write(descriptor, entry)
            except OSError as error:
                # a locked and empty record would block all other loads
                os.unlink(name)
                os.close(descriptor)
                raise PolicyError(
                    f'{name} cannot be written: {error}; make room there, and load again'
                ) from error
        return HeldReservation(self, Path(name), descriptor, entry)

    def entries(self) -> list[ReservationRecord]:
        """Return the current reservations."""
        with self.locked():
            return self._others()

    def write(self, descriptor: int, entry: ReservationRecord) -> None:
        """Write a record; the caller holds the lock."""
        data = json.dumps(asdict(entry)).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)

    def _others(self) -> list[ReservationRecord]:
        """Return the records of running processes; remove the others."""
        found = []
        for file in sorted(self._folder.glob(f'{self._device}-*{SUFFIX}')):
            descriptor = os.open(file, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(_read_record(file, os.pread(descriptor, 1 << 16, 0)))
            else:
                # its process has ended and its memory is free
                file.unlink()
            finally:
                os.close(descriptor)
        return found


def _read_record(file: Path, data: bytes) -> ReservationRecord:
    try:
        return ReservationRecord(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise PolicyError(
            f'{file}: the memory reservation of another policy server cannot be read '
            f'({error}); stop that server, which may be of another version'
        ) from error


def runtime_folder() -> Path:
    """Return the runtime folder of this user, shared by processes until the next boot."""
    given = os.environ.get('XDG_RUNTIME_DIR', '')
    if given and os.access(given, os.W_OK):
        return Path(given) / FOLDER_NAME
    return Path(tempfile.gettempdir()) / f'{FOLDER_NAME}-{os.getuid()}'


def _own_folder(folder: Path) -> Path:
    """Create the folder if needed. Raises PolicyError for one of another user."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PolicyError(
            f'cannot create the folder for memory reservations, {folder}: {error}; set '
            'XDG_RUNTIME_DIR to a folder of this user'
        ) from error
    others = stat.S_IMODE(found.st_mode) & 0o022
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others:
        raise PolicyError(
            f'{folder}, the folder for memory reservations, must be owned by this user and not '
            'writable by others; remove it, or set XDG_RUNTIME_DIR'
        )
    return folder


MAX_DECLARED_SHARE = 0.7
HOST = 'host'
RETRY_PERIOD_S, RESERVE_TIMEOUT_S = 0.1, 900.0


class MemoryBusy(Exception):
    """Not enough memory until the loads of other processes finish."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """
    Memory needed on a device: the declared bytes count for the share, the needed bytes must be
    free.
    """

    device_key: str
    capacity: Callable[[], MemoryCapacity]
    declared_bytes: int
    needed_bytes: int


class MemoryReservation:
    """The reservations of one policy on its devices."""

    def __init__(self) -> None:
        self.while_loaded: list[HeldReservation] = []
        self.while_loading: list[HeldReservation] = []

    def on_loaded(self) -> None:
        """Record that the policy is loaded and warmed up: free memory includes its use."""
        for held in self.while_loading:
            held.release()
        for held in self.while_loaded:
            held.on_loaded()

    def release(self) -> None:
        """Release the reservations: the policy was unloaded or failed to load."""
        for held in (*self.while_loading, *self.while_loaded):
            held.release()


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def reserve(
    options: LoadOptions,
    *,
    log_warning: Callable[[str], None] = lambda _: None,
    wait_for_stop: Callable[[float], bool] = _sleep,
) -> MemoryReservation:
    """
    Reserve memory for the policy in `options.path`; wait while other processes load.

    `log_warning` reports that wait; `wait_for_stop` waits for some seconds and returns whether the
    process is shutting down. Raises PolicyError.
    """
    reserved = MemoryReservation()
    declared = declared_bytes(Path(options.path)) if options.path else 0
    if not declared:
        # a policy without files
        return reserved
    try:
        for need in memory_needs(options, declared):
            held = _wait_for(need, options, log_warning, wait_for_stop)
            while_loaded = need.declared_bytes > 0
            (reserved.while_loaded if while_loaded else reserved.while_loading).append(held)
    except BaseException:
        reserved.release()
        raise
    return reserved


def memory_needs(options: LoadOptions, declared: int) -> list[MemoryNeed]:
    """Return the memory a policy needs, by device."""
    needed = declared + options.memory_margin_bytes + options.embedding_cache_bytes
    if not options.device.startswith('cuda'):
        return [MemoryNeed(HOST, memory.host_memory, declared, needed)]
    # while loading, the weights are also in host memory
    return [
        MemoryNeed(
            memory.cuda_device_key(options.device),
            lambda: memory.cuda_memory(options.device),
            declared,
            needed,
        ),
        MemoryNeed(HOST, memory.host_memory, 0, declared),
    ]


def check_fits(
    need: MemoryNeed, room: MemoryCapacity, others: list[ReservationRecord], options: LoadOptions
) -> None:
    """
    Raise NotEnoughMemory if the policy does not fit, MemoryBusy if it may fit after other loads.
    """
    held = sum(entry.declared_bytes for entry in others)
    limit = MAX_DECLARED_SHARE * room.total_bytes
    if need.declared_bytes and need.declared_bytes + held > limit:
        raise NotEnoughMemory(
            f'the policy in {options.path!r} declares {need.declared_bytes / MB:.0f} MB and '
            f'{_listed(others)} {held / MB:.0f} MB of {room.location}, together more than '
            f'{limit / MB:.0f} MB ({MAX_DECLARED_SHARE:.0%} of {room.total_bytes / MB:.0f} MB); '
            'use smaller policies, a larger or another device, or serve one policy here'
        )
    waited_for = sum(entry.needed_bytes for entry in others if entry.loads)
    if need.needed_bytes + waited_for <= room.free_bytes:
        return
    loading_pids = [str(entry.pid) for entry in others if entry.loads]
    if loading_pids:
        raise MemoryBusy(
            f'the policy in {options.path!r} needs {need.needed_bytes / MB:.0f} MB of '
            f'{room.location}, of which {room.free_bytes / MB:.0f} MB are free and '
            f'{waited_for / MB:.0f} MB are reserved by the loading process '
            f'{", ".join(loading_pids)}: waiting for it to finish loading'
        )
    memory.require_free(need.needed_bytes, room, options)


def _listed(others: list[ReservationRecord]) -> str:
    names = ', '.join(f'{entry.what!r} (process {entry.pid})' for entry in others)
    return f'the policies {names} hold' if others else 'others hold'


def _wait_for(
    need: MemoryNeed,
    options: LoadOptions,
    log_warning: Callable[[str], None],
    wait_for_stop: Callable[[float], bool],
) -> HeldReservation:
    """Wait until the policy fits and return the reservation. Raises PolicyError."""
    store = ReservationStore(need.device_key)
    entry = ReservationRecord(
        os.getpid(), options.path, need.declared_bytes, need.needed_bytes, loads=True
    )
    deadline_s, warning = time.monotonic() + RESERVE_TIMEOUT_S, ''
    while True:
        try:
            return store.add(
                entry, lambda others: check_fits(need, need.capacity(), others, options)
            )
        except MemoryBusy as busy:
            if not warning:
                warning = str(busy)
                log_warning(warning)
        if wait_for_stop(RETRY_PERIOD_S):
            raise PolicyError('shutting down; loading cancelled')
        if time.monotonic() > deadline_s:
            raise NotEnoughMemory(f'{warning}; no memory available after {RESERVE_TIMEOUT_S:g} s')

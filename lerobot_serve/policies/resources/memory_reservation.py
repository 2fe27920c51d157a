"""
Whether a policy may be loaded beside what is loaded already: asked, and reserved, before it is.

Two rules for each device. What policies declare stays below SHARE of the memory there is: the rest
is for what they compute with, for other programs and for the system. And what one needs, margin
included, must be free once those have loaded that are at it. The inference thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import os
from pathlib import Path
import time

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.resources import memory
from lerobot_serve.policies.resources.footprint import declared_bytes
from lerobot_serve.policies.resources.memory import MB, MemoryCapacity
from lerobot_serve.policies.resources.reservation_store import (
    HeldReservation,
    ReservationRecord,
    ReservationStore,
)

MAX_DECLARED_SHARE = 0.7
HOST = 'host'
RETRY_PERIOD_S, RESERVE_TIMEOUT_S = 0.1, 900.0


class MemoryBusy(Exception):
    """There is no room now, and may be when the others have loaded."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """
    A device, and what a policy wants of it: what counts against the share, and what must be free.
    """

    key: str
    room: Callable[[], MemoryCapacity]
    declared_bytes: int
    needed_bytes: int


class MemoryReservation:
    """What one policy holds on its devices."""

    def __init__(self) -> None:
        self.lasting: list[HeldReservation] = []
        self.while_loading: list[HeldReservation] = []

    def loaded(self) -> None:
        """The policy is loaded and warm: free memory shows what it took."""
        for held in self.while_loading:
            held.release()
        for held in self.lasting:
            held.loaded()

    def release(self) -> None:
        """The policy is let go, or was never loaded."""
        for held in (*self.while_loading, *self.lasting):
            held.release()


def reserve(
    loading: LoadOptions,
    *,
    tell: Callable[[str], None] = lambda _: None,
    stopped: Callable[[float], bool] = lambda seconds: bool(time.sleep(seconds)),
) -> MemoryReservation:
    """
    Reserve what the policy in `loading.path` takes; where others load, wait until they have.

    `tell` is given a sentence when that happens, `stopped` waits so many seconds and says whether
    the process ends. Raises PolicyError.
    """
    reserved = MemoryReservation()
    declared = declared_bytes(Path(loading.path)) if loading.path else 0
    if not declared:
        # a policy without files
        return reserved
    try:
        for place in memory_needs(loading, declared):
            held = _wait_for(place, loading, tell, stopped)
            lasting = place.declared_bytes > 0
            (reserved.lasting if lasting else reserved.while_loading).append(held)
    except BaseException:
        reserved.release()
        raise
    return reserved


def memory_needs(loading: LoadOptions, declared: int) -> list[MemoryNeed]:
    """Return what a policy takes, and of which memory."""
    needed = declared + loading.memory_margin_bytes
    if not loading.device.startswith('cuda'):
        return [MemoryNeed(HOST, memory.host_memory, declared, needed)]
    # on its way to the device it lies in the host's memory
    return [
        MemoryNeed(
            memory.cuda_device_key(loading.device),
            lambda: memory.cuda_memory(loading.device),
            declared,
            needed,
        ),
        MemoryNeed(HOST, memory.host_memory, 0, declared),
    ]


def check_fits(
    place: MemoryNeed, room: MemoryCapacity, others: list[ReservationRecord], loading: LoadOptions
) -> None:
    """Raise PolicyError where there is no room, and Busy where there may be soon."""
    held = sum(entry.declared_bytes for entry in others)
    limit = MAX_DECLARED_SHARE * room.total_bytes
    if place.declared_bytes and place.declared_bytes + held > limit:
        raise PolicyError(
            f'the policy in {loading.path!r} declares {place.declared_bytes / MB:.0f} MB and '
            f'{_listed(others)} {held / MB:.0f} MB of {room.place}, together more than '
            f'{limit / MB:.0f} MB ({MAX_DECLARED_SHARE:.0%} of {room.total_bytes / MB:.0f} MB); take smaller '
            'policies, a larger or another device, or serve one policy here'
        )
    waited_for = sum(entry.needed_bytes for entry in others if entry.loads)
    if place.needed_bytes + waited_for <= room.free_bytes:
        return
    loading_pids = [str(entry.pid) for entry in others if entry.loads]
    if loading_pids:
        raise MemoryBusy(
            f'the policy in {loading.path!r} needs {place.needed_bytes / MB:.0f} MB of '
            f'{room.place}, of which {room.free_bytes / MB:.0f} MB are free and '
            f'{waited_for / MB:.0f} MB are about to be taken by process '
            f'{", ".join(loading_pids)}: it waits until that has loaded'
        )
    memory.require_free(place.needed_bytes, room, loading)


def _listed(others: list[ReservationRecord]) -> str:
    names = ', '.join(f'{entry.what!r} (process {entry.pid})' for entry in others)
    return f'the policies {names} hold' if others else 'others hold'


def _wait_for(
    place: MemoryNeed,
    loading: LoadOptions,
    tell: Callable[[str], None],
    stopped: Callable[[float], bool],
) -> HeldReservation:
    """Return what is held of one place, once the others leave room. Raises PolicyError."""
    ledger = ReservationStore(place.key)
    entry = ReservationRecord(
        os.getpid(), loading.path, place.declared_bytes, place.needed_bytes, loads=True
    )
    deadline_s, told = time.monotonic() + RESERVE_TIMEOUT_S, ''
    while True:
        try:
            return ledger.hold(
                entry, lambda others: check_fits(place, place.room(), others, loading)
            )
        except MemoryBusy as busy:
            if not told:
                told = str(busy)
                tell(told)
        if stopped(RETRY_PERIOD_S):
            raise PolicyError('the process ends, nothing is loaded')
        if time.monotonic() > deadline_s:
            raise PolicyError(f'{told}; after {RESERVE_TIMEOUT_S:g} s it still does not fit')

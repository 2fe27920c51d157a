# SPDX-License-Identifier: Apache-2.0
"""
Reserve memory for a policy before it is loaded; wait while other processes load.

Two rules for each device: the declared bytes of all policies stay below MAX_DECLARED_SHARE of the
memory, and the needed bytes, margin included, are free once running loads have finished. The
thread that loads a policy; another policy of the same process counts as those of others.
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
from lerobot_serve.policies.resources.memory import MB, MemoryCapacity, NotEnoughMemory
from lerobot_serve.policies.resources.reservation_store import (
    HeldReservation,
    ReservationRecord,
    ReservationStore,
)

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

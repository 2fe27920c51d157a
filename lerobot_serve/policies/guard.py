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

from lerobot_serve.policies import memory
from lerobot_serve.policies.base import Loading, PolicyError
from lerobot_serve.policies.footprint import declared_bytes
from lerobot_serve.policies.memory import MB, Room
from lerobot_serve.policies.reservation import Entry, Held, Ledger

SHARE = 0.7
HOST = 'host'
LOOK_AGAIN_S, PATIENCE_S = 0.1, 900.0


class Busy(Exception):
    """There is no room now, and may be when the others have loaded."""


@dataclass(frozen=True, slots=True)
class Place:
    """
    A device, and what a policy wants of it: what counts against the share, and what must be free.
    """

    key: str
    room: Callable[[], Room]
    declared_bytes: int
    needed_bytes: int


class Reserved:
    """What one policy holds on its devices."""

    def __init__(self) -> None:
        self.lasting: list[Held] = []
        self.while_loading: list[Held] = []

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
    loading: Loading,
    *,
    tell: Callable[[str], None] = lambda _: None,
    stopped: Callable[[float], bool] = lambda seconds: bool(time.sleep(seconds)),
) -> Reserved:
    """
    Reserve what the policy in `loading.path` takes; where others load, wait until they have.

    `tell` is given a sentence when that happens, `stopped` waits so many seconds and says whether
    the process ends. Raises PolicyError.
    """
    reserved = Reserved()
    declared = declared_bytes(Path(loading.path)) if loading.path else 0
    if not declared:
        # a policy without files
        return reserved
    try:
        for place in places(loading, declared):
            held = _wait_for(place, loading, tell, stopped)
            lasting = place.declared_bytes > 0
            (reserved.lasting if lasting else reserved.while_loading).append(held)
    except BaseException:
        reserved.release()
        raise
    return reserved


def places(loading: Loading, declared: int) -> list[Place]:
    """Return what a policy takes, and of which memory."""
    needed = declared + loading.memory_margin_bytes
    if not loading.device.startswith('cuda'):
        return [Place(HOST, memory.host_room, declared, needed)]
    # on its way to the device it lies in the host's memory
    return [
        Place(
            memory.cuda_key(loading.device),
            lambda: memory.cuda_room(loading.device),
            declared,
            needed,
        ),
        Place(HOST, memory.host_room, 0, declared),
    ]


def judge(place: Place, room: Room, others: list[Entry], loading: Loading) -> None:
    """Raise PolicyError where there is no room, and Busy where there may be soon."""
    held = sum(entry.declared_bytes for entry in others)
    limit = SHARE * room.total_bytes
    if place.declared_bytes and place.declared_bytes + held > limit:
        raise PolicyError(
            f'the policy in {loading.path!r} declares {place.declared_bytes / MB:.0f} MB and '
            f'{_listed(others)} {held / MB:.0f} MB of {room.place}, together more than '
            f'{limit / MB:.0f} MB ({SHARE:.0%} of {room.total_bytes / MB:.0f} MB); take smaller '
            'policies, a larger or another device, or serve one policy here'
        )
    waited_for = sum(entry.needed_bytes for entry in others if entry.loads)
    if place.needed_bytes + waited_for <= room.free_bytes:
        return
    loading_pids = [str(entry.pid) for entry in others if entry.loads]
    if loading_pids:
        raise Busy(
            f'the policy in {loading.path!r} needs {place.needed_bytes / MB:.0f} MB of '
            f'{room.place}, of which {room.free_bytes / MB:.0f} MB are free and '
            f'{waited_for / MB:.0f} MB are about to be taken by process '
            f'{", ".join(loading_pids)}: it waits until that has loaded'
        )
    memory.require(place.needed_bytes, room, loading)


def _listed(others: list[Entry]) -> str:
    names = ', '.join(f'{entry.what!r} (process {entry.pid})' for entry in others)
    return f'the policies {names} hold' if others else 'others hold'


def _wait_for(
    place: Place,
    loading: Loading,
    tell: Callable[[str], None],
    stopped: Callable[[float], bool],
) -> Held:
    """Return what is held of one place, once the others leave room. Raises PolicyError."""
    ledger = Ledger(place.key)
    entry = Entry(os.getpid(), loading.path, place.declared_bytes, place.needed_bytes, loads=True)
    deadline_s, told = time.monotonic() + PATIENCE_S, ''
    while True:
        try:
            return ledger.hold(entry, lambda others: judge(place, place.room(), others, loading))
        except Busy as busy:
            if not told:
                told = str(busy)
                tell(told)
        if stopped(LOOK_AGAIN_S):
            raise PolicyError('the process ends, nothing is loaded')
        if time.monotonic() > deadline_s:
            raise PolicyError(f'{told}; after {PATIENCE_S:g} s it still does not fit')

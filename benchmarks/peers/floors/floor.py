# SPDX-License-Identifier: Apache-2.0
"""What all floors share. Plain; main thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import time

import numpy as np

from benchmarks.peers.peer_process import Address, Frames, LOST, run, single_robot, Trip
from lerobot_serve.arrays import Uint8Array

# of 100 steps of 6 joints, as this package sends them
REPLY = bytes(4968)
PAGE_BYTES = 4096
ANSWER_S = 20.0
# sends the pictures, and returns how many bytes came back
Ask = Callable[[Sequence[np.ndarray]], int]


def main(serve: Callable[[Address], None], connect: Callable[[Address], Ask]) -> int:
    """Be a server or a client, as the command line says."""
    return run((), serve, {'client': single_robot(lambda address: timed(connect(address)))})


def timed(ask: Ask) -> Trip:
    """Return what makes one trip [ms]."""

    def trip(pictures: Frames) -> float | str:
        begin_ns = time.perf_counter_ns()
        reply_bytes = ask(tuple(pictures.values()))
        took_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        return took_ms if reply_bytes == len(REPLY) else LOST

    return trip


def write_pictures(page: Uint8Array, pictures: Sequence[np.ndarray]) -> None:
    """Write all pictures, one after the other."""
    at = 0
    for picture in pictures:
        page[at : at + picture.size] = picture.reshape(-1)
        at += picture.size


def touch(page: Uint8Array) -> None:
    """Read a byte of each page of memory, so that all of it is mapped."""
    page[::PAGE_BYTES].max()

# SPDX-License-Identifier: Apache-2.0
"""
iceoryx2: a slice of bytes in shared memory and an event in each direction. It is no requirement
and is not installed: PYTHONPATH names a folder that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import ctypes
from importlib import import_module
import time
from typing import Any

import numpy as np

from benchmarks.peers.floors import floor
from benchmarks.peers.floors.floor import ANSWER_S, Ask, REPLY, touch, write_pictures
from benchmarks.peers.peer_process import Address, READY_S
from lerobot_serve.arrays import Uint8Array

POLL_S = 0.05
REPLY_PAGE = np.frombuffer(REPLY, np.uint8)


class Lane:
    """One direction between two processes; a service for bytes and one for wake-ups."""

    def __init__(self, node: Any, name: str) -> None:
        self._iceoryx = import_module('iceoryx2')
        service = self._iceoryx.ServiceName.new(name)
        content = self._iceoryx.Slice[ctypes.c_uint8]
        builder = node.service_builder(service)
        self._bytes = builder.publish_subscribe(content).open_or_create()
        self._wake_ups = node.service_builder(service).event().open_or_create()

    def writer(self) -> Callable[[Sequence[np.ndarray]], None]:
        """Return what writes pictures into a new page and wakes the reader."""
        growth = self._iceoryx.AllocationStrategy.PowerOfTwo
        publisher = self._bytes.publisher_builder().allocation_strategy(growth).create()
        notifier = self._wake_ups.notifier_builder().create()

        def write(pictures: Sequence[np.ndarray]) -> None:
            page = publisher.loan_slice_uninit(sum(picture.size for picture in pictures))
            write_pictures(view(page), pictures)
            page.assume_init().send()
            notifier.notify()

        return write

    def reader(self) -> Callable[[float], int]:
        """Return what waits for a page, reads it, and returns its length, 0 when none came."""
        subscriber = self._bytes.subscriber_builder().create()
        listener = self._wake_ups.listener_builder().create()

        def read(within_s: float) -> int:
            deadline = time.monotonic() + within_s
            while (page := subscriber.receive()) is None:
                if time.monotonic() > deadline:
                    return 0
                listener.timed_wait(self._iceoryx.Duration.from_millis(round(1e3 * POLL_S)))
            size_bytes = len(view(page))
            touch(view(page))
            page.delete()
            return size_bytes

        return read


def view(page: Any) -> Uint8Array:
    """Return the bytes of a page as they lie there."""
    return np.frombuffer(page.payload().as_memory_view().cast('B'), np.uint8)


def lanes(address: Address) -> tuple[Lane, Lane]:
    """Return the way of requests and that of replies."""
    iceoryx = import_module('iceoryx2')
    # a signal is Python's matter
    builder = iceoryx.NodeBuilder.new().signal_handling_mode(iceoryx.SignalHandlingMode.Disabled)
    node = builder.create(iceoryx.ServiceType.Ipc)
    return Lane(node, f'floor/{address.port}/asked'), Lane(node, f'floor/{address.port}/replied')


def serve(address: Address) -> None:
    """Serve until a signal."""
    asked, replied = lanes(address)
    read, write = asked.reader(), replied.writer()
    while True:
        if read(ANSWER_S):
            write((REPLY_PAGE,))


def connect(address: Address) -> Ask:
    """Return what asks once. Raises TimeoutError when the server does not come up."""
    asked, replied = lanes(address)
    read, write = replied.reader(), asked.writer()
    deadline = time.monotonic() + READY_S
    # a page that is sent before the server reads is lost
    while not read(POLL_S):
        if time.monotonic() > deadline:
            raise TimeoutError('the server does not read')
        write((REPLY_PAGE,))
    # of pages that waited until the server read
    while read(POLL_S):
        pass

    def ask(pictures: Sequence[np.ndarray]) -> int:
        write(pictures)
        return read(ANSWER_S)

    return ask


if __name__ == '__main__':
    raise SystemExit(floor.main(serve, connect))

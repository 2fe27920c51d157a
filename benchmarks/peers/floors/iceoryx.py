# SPDX-License-Identifier: Apache-2.0
"""
iceoryx2: a slice of bytes in shared memory and an event in each direction. It is no requirement
and is not installed: PYTHONPATH names a folder that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """One direction between two processes: a service for pages, and one for wake-ups."""

    def __init__(self, node: Any, name: str) -> None:
        service, content = iceoryx().ServiceName.new(name), iceoryx().Slice[ctypes.c_uint8]
        builder = node.service_builder(service)
        self._pages = builder.publish_subscribe(content).open_or_create()
        self._wake_ups = node.service_builder(service).event().open_or_create()

    def to_write(self) -> Lane:
        growing = iceoryx().AllocationStrategy.PowerOfTwo
        self._publisher = self._pages.publisher_builder().allocation_strategy(growing).create()
        self._notifier = self._wake_ups.notifier_builder().create()
        return self

    def to_read(self) -> Lane:
        self._subscriber = self._pages.subscriber_builder().create()
        self._listener = self._wake_ups.listener_builder().create()
        return self

    def write(self, pictures: Sequence[np.ndarray]) -> None:
        """Write pictures into a page, and wake the reader."""
        page = self._publisher.loan_slice_uninit(sum(picture.size for picture in pictures))
        write_pictures(view(page), pictures)
        page.assume_init().send()
        self._notifier.notify()

    def read(self, within_s: float) -> int:
        """Read a page in place, and return its length; 0 when none came."""
        deadline = time.monotonic() + within_s
        while (page := self._subscriber.receive()) is None:
            if time.monotonic() > deadline:
                return 0
            self._listener.timed_wait(iceoryx().Duration.from_millis(round(1e3 * POLL_S)))
        size_bytes = len(view(page))
        touch(view(page))
        page.delete()
        return size_bytes


def iceoryx() -> Any:
    return import_module('iceoryx2')


def view(page: Any) -> Uint8Array:
    """Return the bytes of a page as they lie there."""
    return np.frombuffer(page.payload().as_memory_view().cast('B'), np.uint8)


def lanes(address: Address) -> tuple[Lane, Lane]:
    """Return the way of requests and that of replies."""
    # a signal is Python's matter
    mode = iceoryx().SignalHandlingMode.Disabled
    builder = iceoryx().NodeBuilder.new().signal_handling_mode(mode)
    node = builder.create(iceoryx().ServiceType.Ipc)
    return Lane(node, f'floor/{address.port}/asked'), Lane(node, f'floor/{address.port}/replied')


def serve(address: Address) -> None:
    """Serve until a signal."""
    asked, replied = lanes(address)
    requests, replies = asked.to_read(), replied.to_write()
    while True:
        if requests.read(ANSWER_S):
            replies.write((REPLY_PAGE,))


def connect(address: Address) -> Ask:
    """Return what asks once. Raises TimeoutError when the server does not come up."""
    asked, replied = lanes(address)
    requests, replies = asked.to_write(), replied.to_read()
    deadline = time.monotonic() + READY_S
    # a page that is sent before the server reads is lost
    while not replies.read(POLL_S):
        if time.monotonic() > deadline:
            raise TimeoutError('the server does not read')
        requests.write((REPLY_PAGE,))
    # of pages that waited until the server read
    while replies.read(POLL_S):
        pass

    def ask(pictures: Sequence[np.ndarray]) -> int:
        requests.write(pictures)
        return replies.read(ANSWER_S)

    return ask


if __name__ == '__main__':
    raise SystemExit(floor.main(serve, connect))

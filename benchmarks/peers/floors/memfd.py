# SPDX-License-Identifier: Apache-2.0
"""
A page that both processes map: the client writes it, the server reads it in place. A message over
a Unix socket wakes the server, and the reply is one. The page has no name: its descriptor is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
import mmap
import os
import socket

import numpy as np

from benchmarks.peers.floors import floor
from benchmarks.peers.floors.floor import Ask, REPLY, touch, write_pictures
from benchmarks.peers.peer_process import Address, retry_until_connected
from lerobot_serve.arrays import Uint8Array

ASK = b'ask'


def serve(address: Address) -> None:
    """Serve one client until it hangs up."""
    with unix_socket() as door:
        door.bind(name_of(address))
        door.listen()
        client, _ = door.accept()
    page = np.empty(0, np.uint8)
    with client:
        while True:
            asked, descriptors, _, _ = socket.recv_fds(client, len(ASK), 1)
            if not asked:
                return
            for descriptor in descriptors:
                page = mapped(descriptor, mmap.PROT_READ)
            touch(page)
            client.send(REPLY)


def connect(address: Address) -> Ask:
    """Return what asks once; each size of pictures has a page."""
    link = unix_socket()
    retry_until_connected(lambda: link.connect(name_of(address)))
    pages: dict[int, tuple[Uint8Array, int]] = {}

    def ask(pictures: Sequence[np.ndarray]) -> int:
        size_bytes = sum(picture.size for picture in pictures)
        descriptors = []
        if size_bytes not in pages:
            descriptor = os.memfd_create('pictures')
            os.ftruncate(descriptor, size_bytes)
            descriptors = [descriptor]
            pages[size_bytes] = mapped(descriptor, mmap.PROT_READ | mmap.PROT_WRITE)
        write_pictures(pages[size_bytes], pictures)
        socket.send_fds(link, [ASK], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return len(link.recv(len(REPLY) + 1))

    return ask


def unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def name_of(address: Address) -> str:
    """Return the name of the socket, which is no file."""
    return f'\0floor-{address.port}'


def mapped(descriptor: int, protection: int) -> Uint8Array:
    """Return the page of a descriptor."""
    return np.frombuffer(mmap.mmap(descriptor, 0, prot=protection), np.uint8)


if __name__ == '__main__':
    raise SystemExit(floor.main(serve, connect))

# SPDX-License-Identifier: Apache-2.0
"""TCP over the loopback: a length and the pictures there, as many bytes as a chunk has back."""

from __future__ import annotations

from collections.abc import Sequence
import socket
import struct

import numpy as np

from benchmarks.peers.floors import floor
from benchmarks.peers.floors.floor import Ask, REPLY
from benchmarks.peers.peer_process import Address, retry_until_connected

LENGTH = struct.Struct('<Q')


def serve(address: Address) -> None:
    """Serve one client until it hangs up."""
    with socket.create_server((address.host, address.port)) as door:
        client, _ = door.accept()
    received = bytearray()
    with client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := client.recv(LENGTH.size, socket.MSG_WAITALL):
            (size_bytes,) = LENGTH.unpack(head)
            if len(received) != size_bytes:
                received = bytearray(size_bytes)
            client.recv_into(received, size_bytes, socket.MSG_WAITALL)
            client.sendall(REPLY)


def connect(address: Address) -> Ask:
    """Return what asks once."""
    link = retry_until_connected(lambda: socket.create_connection((address.host, address.port)))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(pictures: Sequence[np.ndarray]) -> int:
        size_bytes = sum(picture.size for picture in pictures)
        link.sendall(LENGTH.pack(size_bytes), socket.MSG_MORE)
        for picture in pictures:
            link.sendall(picture)
        return len(link.recv(len(REPLY), socket.MSG_WAITALL))

    return ask


if __name__ == '__main__':
    raise SystemExit(floor.main(serve, connect))

# SPDX-License-Identifier: Apache-2.0
"""
What a link really gives, without ROS: a process on each side.

    python -m benchmarks.network_emulation.probe server
    python -m benchmarks.network_emulation.probe client SOCKET

The client answers the orders `ping` with how long one small datagram took there and back [ms], and
`bulk` with how fast TCP sent [Mbit/s].
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import time

from benchmarks.network_emulation.relay import SERVER
from benchmarks.peers.peer_process import retry_until_connected, serve_orders

PORT = 5201
PING, DONE = b'p' * 64, b'.'
ANSWER_S = 2.0
CHUNK_BYTES = 65536


def main() -> int:
    """Be one of the two until a signal, or until the benchmark hangs up."""
    with contextlib.suppress(KeyboardInterrupt):
        if sys.argv[1] == 'server':
            serve()
        else:
            serve_orders(sys.argv[2], {}, {'ping': ping_ms, 'bulk': bulk_mbit_s})
    return 0


def serve() -> None:
    """Answer each datagram with itself, each connection with one byte at its end."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((SERVER, PORT))
    streams = socket.create_server((SERVER, PORT))
    with datagrams, streams, selectors.DefaultSelector() as either:
        either.register(datagrams, selectors.EVENT_READ)
        either.register(streams, selectors.EVENT_READ)
        while True:
            for key, _ in either.select():
                if key.fileobj is datagrams:
                    datagrams.sendto(*datagrams.recvfrom(CHUNK_BYTES))
                else:
                    with streams.accept()[0] as stream:
                        while stream.recv(CHUNK_BYTES):
                            pass
                        stream.sendall(DONE)


def ping_ms() -> float | None:
    """Return how long a datagram took there and back, None when it was lost."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(ANSWER_S)
        begin_ns = time.perf_counter_ns()
        datagrams.sendto(PING, (SERVER, PORT))
        try:
            datagrams.recv(CHUNK_BYTES)
        except TimeoutError:
            return None
        return (time.perf_counter_ns() - begin_ns) / 1e6


def bulk_mbit_s(size_bytes: int) -> float:
    """Send so many bytes over a connection of their own, and return how fast they arrived."""
    stream = retry_until_connected(lambda: socket.create_connection((SERVER, PORT)))
    with stream:
        begin_ns = time.perf_counter_ns()
        stream.sendall(bytes(size_bytes))
        stream.shutdown(socket.SHUT_WR)
        stream.recv(1)
        return size_bytes * 8e3 / (time.perf_counter_ns() - begin_ns)


if __name__ == '__main__':
    raise SystemExit(main())

# SPDX-License-Identifier: Apache-2.0
"""Ports of the loopback that a test may listen on."""

from __future__ import annotations

import random
import socket

# below those that the system gives to outgoing connections, which could take one meanwhile
PORTS = range(15_000, 32_000)
# not the generator that tests seed
DRAW = random.SystemRandom()
given: set[int] = set()


def free_port() -> int:
    """Return a port that is free for TCP and for UDP, which QUIC uses; each only once."""
    while True:
        port = DRAW.choice(PORTS)
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        if port not in given and all(is_free(port, kind) for kind in kinds):
            given.add(port)
            return port


def is_free(port: int, kind: int) -> bool:
    with socket.socket(type=kind) as found:
        try:
            found.bind(('127.0.0.1', port))
        except OSError:
            return False
    return True

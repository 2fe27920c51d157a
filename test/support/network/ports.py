# SPDX-License-Identifier: Apache-2.0
"""Ports of the loopback that a test may listen on."""

from __future__ import annotations

import random
import socket

# below those that the system gives to outgoing connections, which could take one meanwhile
PORTS = range(15_000, 32_000)


def free_port() -> int:
    """Return a port that is free for TCP and for UDP, which QUIC uses."""
    while True:
        port = random.choice(PORTS)
        if all(is_free(port, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            return port


def is_free(port: int, kind: int) -> bool:
    with socket.socket(type=kind) as found:
        try:
            found.bind(('127.0.0.1', port))
        except OSError:
            return False
    return True

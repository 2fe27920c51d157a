# SPDX-License-Identifier: Apache-2.0
"""
A client of the local path as a process: it takes an offer from its input, sends one request, and
prints what became of it. As root it becomes another user first, once all is loaded: that user need
not be able to read Python. Arguments: the user, its group, and its other groups.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from lerobot_serve.local.offer import decode
from lerobot_serve.local.path import LocalPath


def become(user: int, group: int, *others: int) -> None:
    os.setgroups(others)
    os.setgid(group)
    os.setuid(user)


def main() -> None:
    if sys.argv[1:]:
        become(*map(int, sys.argv[1:]))
    chunks: list[bytes] = []
    arrived = threading.Event()

    def on_chunk(raw: bytes) -> None:
        chunks.append(raw)
        arrived.set()

    log: list[str] = []
    path = LocalPath(on_chunk, lambda _: None, lifespan_s=10.0, log=log.append)
    offer = decode(sys.stdin.buffer.read())
    assert offer
    path.use(offer)
    is_sent = path.send(b'request')
    if is_sent:
        assert arrived.wait(10)
    print(json.dumps({'is_sent': is_sent, 'chunks': [c.decode() for c in chunks], 'log': log}))


if __name__ == '__main__':
    main()

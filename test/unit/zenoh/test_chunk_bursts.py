# SPDX-License-Identifier: Apache-2.0
"""A server that answers many robots at once loses none of its chunks."""

from __future__ import annotations

import threading

from support.nodes.zenoh_links import free_endpoint
from support.waiting import wait_until

from lerobot_serve.zenoh.link import is_matched, ZenohLink
from lerobot_serve.zenoh.settings import QUEUED_BATCHES, Traffic, ZenohSettings

BURSTS, CHUNK, KEY, LIMIT_S = 200, bytes(5000), 'burst/chunk', 30.0


def test_chunks_at_once_wait_for_the_thread_that_sends():
    endpoint, arrived = free_endpoint(), threading.Semaphore(0)
    server = ZenohLink(ZenohSettings(listen=(endpoint,)))
    client = ZenohLink(ZenohSettings(connect=(endpoint,)))
    try:
        client.subscribe(KEY, lambda *_: arrived.release())
        publisher = server.publisher(KEY, Traffic.CHUNK)
        wait_until(lambda: is_matched(publisher), 'the client is there')
        for burst in range(BURSTS):
            for _ in range(QUEUED_BATCHES):
                publisher.put(CHUNK)
            for number in range(QUEUED_BATCHES):
                assert arrived.acquire(timeout=LIMIT_S), (burst, number)
    finally:
        client.close()
        server.close()

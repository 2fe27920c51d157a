# SPDX-License-Identifier: Apache-2.0
"""What a thread receives and sends on is sent as it was received, without a copy."""

from __future__ import annotations

from contextlib import ExitStack
import queue
import threading

import pytest
from support.nodes.zenoh_links import free_endpoint
import zenoh

from lerobot_serve.links.zenoh import ZenohServerLink
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.link import forwarded, is_matched, ZenohLink
from lerobot_serve.zenoh.settings import Traffic, ZenohSettings

WAIT_S = 20
TO_ROUTER, TO_SERVER = 'test/to_router', 'test/to_server'


@pytest.fixture
def links():
    """A robot, a router and a server."""
    at_router, at_server = free_endpoint(), free_endpoint()
    with ExitStack() as stack:

        def link(**settings) -> ZenohLink:
            opened = ZenohLink(ZenohSettings(**settings))
            stack.callback(opened.close)
            return opened

        server = link(listen=(at_server,))
        router = link(listen=(at_router,), connect=(at_server,))
        yield link(connect=(at_router,)), router, server


def wait_for_reader(publisher: zenoh.Publisher) -> None:
    for _ in range(WAIT_S * 100):
        if is_matched(publisher):
            return
        threading.Event().wait(0.01)
    raise AssertionError('the subscriber was not found')


# below and above what goes through shared memory
@pytest.mark.parametrize('size', [100, 1_000_000])
def test_a_router_passes_the_payload_on(links, size):
    robot, router, server = links
    sent: queue.SimpleQueue[object] = queue.SimpleQueue()
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    onward = router.publisher(TO_SERVER, Traffic.OBSERVATION)

    def forward(_: str, raw: bytes) -> None:
        sent.put((forwarded(raw), forwarded(raw + b'!')))
        onward.put(forwarded(raw))

    subscriptions = [
        server.subscribe(TO_SERVER, lambda _, raw: arrived.put(raw)),
        router.subscribe(TO_ROUTER, forward),
    ]
    request = robot.publisher(TO_ROUTER, Traffic.OBSERVATION)
    for publisher in (onward, request):
        wait_for_reader(publisher)
    for content in (b'first', b'second'):
        raw = content.ljust(size, b'.')
        request.put(raw)
        assert arrived.get(timeout=WAIT_S) == raw
        payload, changed = sent.get(timeout=WAIT_S)
        # a ZBytes holds the received memory; other bytes are sent as they are
        assert isinstance(payload, zenoh.ZBytes)
        assert changed == raw + b'!'
    for subscription in subscriptions:
        subscription.undeclare()


def test_another_thread_sends_the_bytes(links):
    robot, router, _ = links
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    returned, looked = threading.Event(), threading.Event()

    def hold(_: str, raw: bytes) -> None:
        received.put(raw)
        looked.wait(WAIT_S)
        returned.set()

    subscription = router.subscribe(TO_ROUTER, hold)
    request = robot.publisher(TO_ROUTER, Traffic.OBSERVATION)
    wait_for_reader(request)
    request.put(b'later')
    raw = received.get(timeout=WAIT_S)
    assert forwarded(raw) is raw
    looked.set()
    assert returned.wait(WAIT_S)
    subscription.undeclare()


def test_the_thread_of_a_replica_sends_the_payload_that_the_router_received(links, monkeypatch):
    """It is another thread, so the client takes the payload before it queues the request."""
    robot, router, server = links
    sent: queue.SimpleQueue[object] = queue.SimpleQueue()
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    client = ZenohServerLink(router, '/server', Role.ROUTER, '/router', on_drop=lambda _: None)
    put = client._sender._put
    monkeypatch.setattr(client._sender, '_put', lambda raw: (sent.put(raw), put(raw)))
    subscriptions = [
        server.subscribe(client.keys.observation, lambda _, raw: arrived.put(raw)),
        router.subscribe(TO_ROUTER, lambda _, raw: client.publish(raw)),
    ]
    request = robot.publisher(TO_ROUTER, Traffic.OBSERVATION)
    for publisher in (client._requests, request):
        wait_for_reader(publisher)
    raw = b'.' * 1_000_000
    request.put(raw)
    assert arrived.get(timeout=WAIT_S) == raw
    assert isinstance(sent.get(timeout=WAIT_S), zenoh.ZBytes)
    for subscription in subscriptions:
        subscription.undeclare()
    client.close()

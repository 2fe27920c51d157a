# SPDX-License-Identifier: Apache-2.0
"""A Zenoh link ends in time, whatever its peer does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.tools.processes.parent_death import end_with_parent
from lerobot_serve.zenoh.link import CLOSE_LIMIT_S, ZenohLink
from lerobot_serve.zenoh.settings import LEASE_MS, ZenohSettings

# notices of a few megabytes: more than the queue and the sockets hold, each in one batch
NOTICES, NOTICE_BYTES = 1000, 30_000
# a call that blocks waits for a full link for so long
BLOCKED_S = 5.0
# Zenoh itself waits ten seconds
ZENOH_LIMIT_S = 10.0
PEER = """
import sys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
link = ZenohLink(ZenohSettings(listen=(sys.argv[1],)))
served = link.serve('test/peer/service', lambda query: query.drop())
token = link.declare_alive('test/peer/alive')
print('listening', flush=True)
sys.stdin.read()
link.close()
"""


@pytest.fixture
def peer():
    """A process that listens, and its endpoint."""
    endpoint = free_endpoint()
    process = subprocess.Popen(
        end_with_parent([sys.executable, '-c', PEER, endpoint]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b'listening\n'
        yield process, endpoint
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=30)


def test_a_notice_to_a_peer_that_hangs_does_not_wait(peer):
    """An event loop announces episodes: it would stand still for seconds."""
    process, endpoint = peer
    link = ZenohLink(ZenohSettings(connect=(endpoint,), shared_memory=False))
    present, raw = threading.Event(), bytes(NOTICE_BYTES)
    watch = link.watch_alive('test/peer/alive', lambda *_: present.set())
    assert present.wait(20)
    watch.undeclare()
    process.send_signal(signal.SIGSTOP)
    end_s, longest_s = time.monotonic() + LEASE_MS / 1e3, 0.0
    for _ in range(NOTICES):
        begin_s = time.monotonic()
        link.call_later('test/peer/service', raw, lambda _: None)
        longest_s = max(longest_s, time.monotonic() - begin_s)
        if time.monotonic() > end_s:
            break
    assert longest_s < BLOCKED_S / 4
    link.close()


def test_a_peer_that_hangs_does_not_hold_up_the_end(peer):
    process, endpoint = peer
    link, present = ZenohLink(ZenohSettings(connect=(endpoint,))), threading.Event()
    watch = link.watch_alive('test/peer/alive', lambda *_: present.set())
    assert present.wait(20)
    watch.undeclare()
    process.send_signal(signal.SIGSTOP)
    begin_s = time.monotonic()
    link.close()
    assert time.monotonic() - begin_s < (CLOSE_LIMIT_S + ZENOH_LIMIT_S) / 2
    process.send_signal(signal.SIGCONT)
    for thread in threading.enumerate():
        if thread.name == 'zenoh_close':
            thread.join(20)
    # a second call has nothing to do
    link.close()


def test_a_call_over_a_link_that_another_thread_has_closed_is_unreachable():
    link = ZenohLink(ZenohSettings())
    link.close()
    with pytest.raises(ServerUnreachable, match='/lab/policy_server, get_status: '):
        link.call('@lerobot/site/lab.policy_server/robot/r/service/get_status', b'', 1.0)

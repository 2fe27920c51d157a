# SPDX-License-Identifier: Apache-2.0
"""A peer whose link is full holds up no other; each message is sent, or counted as link_full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from support.nodes.zenoh_links import free_endpoint
from support.waiting import wait_until
import zenoh

from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.gateway.counters import GatewayCounters
from lerobot_serve.links.fake import FakeReplies
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.links.zenoh import QUEUED_REQUESTS, ZenohServerLink
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import CLOSE_LIMIT_S, DROPPED_AFTER_S, ZenohLink
from lerobot_serve.zenoh.link_sender import LINK_FULL, LinkSender
from lerobot_serve.zenoh.replies import ZenohReplyPublishers
from lerobot_serve.zenoh.settings import LEASE_MS, Traffic, ZenohSettings

LIMIT_S = 20.0


class Publisher:
    """One that Zenoh would give: its put waits while the link is full."""

    def __init__(self, traffic: Traffic, free: threading.Event) -> None:
        self.traffic, self.free, self.sent = traffic, free, []
        self.has_begun = threading.Event()
        self.is_undeclared, self.matching_status = False, SimpleNamespace(matching=False)

    def put(self, raw: bytes) -> None:
        assert not self.is_undeclared
        self.has_begun.set()
        if self.traffic.value.blocks:
            assert self.free.wait(LIMIT_S)
        elif not self.free.wait(DROPPED_AFTER_S):
            # as Zenoh does, without a word
            return
        self.sent.append(raw)

    def undeclare(self) -> None:
        self.is_undeclared = True


class Link:
    """A link whose peers are free or full, by a part of their keys."""

    settings = ZenohSettings()

    def __init__(self, *full: str) -> None:
        self.full = {part: threading.Event() for part in full}
        self.made: list[tuple[str, Publisher]] = []

    def publisher(self, key: str, traffic: Traffic) -> Publisher:
        always = threading.Event()
        always.set()
        free = next((event for part, event in self.full.items() if part in key), always)
        self.made.append((key, Publisher(traffic, free)))
        return self.made[-1][1]

    def watch_alive(self, key, on_presence):
        self.on_presence = on_presence
        return SimpleNamespace(undeclare=lambda: None)

    def declare_alive(self, key):
        return SimpleNamespace(undeclare=lambda: None)

    def subscribe(self, key, on_payload):
        return SimpleNamespace(undeclare=lambda: None)

    def close(self) -> None:
        """End all that waits, as Zenoh does."""
        for event in self.full.values():
            event.set()

    def has_begun(self, part: str) -> bool:
        return any(part in key and each.has_begun.is_set() for key, each in self.made)

    def sent(self, part: str) -> list[bytes]:
        return [raw for key, each in self.made if part in key for raw in each.sent]


@pytest.fixture
def drops():
    return DropCounters()


def messages(count: int) -> list[bytes]:
    return [bytes([number]) for number in range(count)]


def queued_client(link: Link, server: str, on_drop: Callable[[str], None]) -> ServerClient:
    """Return a client with the sessions of many."""
    at = ZenohServerLink(link, server, Role.ROUTER, '/router', on_drop=on_drop, lifespan_s=60.0)
    return ServerClient(at, FakeReplies())


def test_a_replica_that_takes_nothing_holds_up_no_other(drops):
    link = Link('hung')
    clients = {name: queued_client(link, name, drops.add) for name in ('/hung', '/fine')}
    transport = ReplicaTransport(clients, None, drops, lambda _: None)
    given = messages(QUEUED_REQUESTS + 10)
    # one thread, as the intake of the router
    for raw in given:
        transport.send('/hung', raw)
        wait_until(lambda: link.has_begun('hung'), 'the first is on its way', LIMIT_S)
        transport.send('/fine', raw)
        wait_until(lambda raw=raw: link.sent('fine')[-1:] == [raw], 'the other has it', LIMIT_S)
    assert link.sent('hung') == []
    # one is on its way
    assert drops.counts() == {LINK_FULL: len(given) - QUEUED_REQUESTS - 1}
    link.full['hung'].set()
    wait_until(lambda: len(link.sent('hung')) == QUEUED_REQUESTS + 1, 'it has the rest', LIMIT_S)
    assert link.sent('hung')[1:] == given[-QUEUED_REQUESTS:]
    for client in clients.values():
        client.end()
    wait_until(lambda: all(each.is_undeclared for _, each in link.made), 'all ended', LIMIT_S)


def test_a_full_uplink_does_not_hold_up_the_loop_of_a_gateway_and_its_losses_are_counted():
    link, counters = Link('policy_router'), GatewayCounters()
    upstream = queued_client(link, '/policy_router', counters.note_lost)
    given = messages(QUEUED_REQUESTS + 10)
    # one thread, as the event loop
    for raw in given:
        upstream.send(raw)
        wait_until(lambda: link.has_begun('policy_router'), 'the first is on its way', LIMIT_S)
    assert not link.sent('policy_router'), 'it is full, and this thread did not wait'
    assert counters.lost == {LINK_FULL: len(given) - QUEUED_REQUESTS - 1}
    upstream.end()
    link.close()
    assert counters.lost == {LINK_FULL: len(given) - 1}
    wait_until(lambda: all(each.is_undeclared for _, each in link.made), 'all ended', LIMIT_S)


def test_a_robot_that_takes_nothing_holds_up_no_other(drops):
    link, keys = Link('robot_1'), ServerKeys('default', '/policy_server')
    replies = ZenohReplyPublishers(link, keys)
    replies.on_drop = drops.add
    cut_off, fine = (keys.client(Role.ROBOT, name) for name in ('robot_1', 'robot_2'))
    for client in (cut_off, fine):
        replies.open(client.reply(1))
        link.on_presence(client.alive, True)
    given = messages(50)
    # one thread, as that of the server's policy
    for raw in given:
        assert replies.send(cut_off.reply(1), raw)
        assert replies.send(fine.reply(1), raw)
        assert link.made[-1][1].has_begun.wait(LIMIT_S)
    assert link.sent('robot_2') == given
    # the first waits for the link, the newest behind it
    assert drops.counts() == {LINK_FULL: len(given) - 2}
    link.full['robot_1'].set()
    wait_until(lambda: link.sent('robot_1') == [given[0], given[-1]], 'sent', LIMIT_S)

    def is_direct() -> bool:
        replies.send(cut_off.reply(1), b'direct')
        direct = [each for _, each in link.made if each.traffic is Traffic.CHUNK]
        return b'direct' in direct[0].sent

    wait_until(is_direct, 'the link is free, no other thread is needed', LIMIT_S)
    replies.retain(set())
    wait_until(lambda: all(each.is_undeclared for _, each in link.made), 'all ended', LIMIT_S)
    assert not replies.send(cut_off.reply(1), b'late')


def test_a_chunk_for_a_client_that_is_gone_is_not_sent():
    link, keys = Link(), ServerKeys('default', '/policy_server')
    replies, robot = ZenohReplyPublishers(link, keys), keys.client(Role.ROBOT, 'robot_1')
    replies.open(robot.reply(1))
    link.on_presence(robot.alive, True)
    assert replies.send(robot.reply(1), b'1')
    link.on_presence(robot.alive, False)
    assert not replies.send(robot.reply(1), b'2')
    # its subscription came before its token
    link.made[0][1].matching_status.matching = True
    assert replies.send(robot.reply(1), b'3')
    assert link.sent('robot_1') == [b'1', b'3']


def test_a_message_that_waited_too_long_is_counted():
    free, sent, dropped = threading.Event(), [], Counter()

    def put(raw: bytes) -> None:
        assert free.wait(LIMIT_S)
        sent.append(raw)

    sender = LinkSender(put, lambda reason: dropped.update([reason]), limit=4, lifespan_s=-1.0)
    for raw in messages(3):
        sender.send(raw)
    wait_until(lambda: dropped == {LINK_FULL: 3}, 'all are too old', LIMIT_S)
    assert sender.is_idle and not sent
    ended = threading.Event()
    sender.close(ended.set)
    assert ended.is_set()
    sender.send(b'late')
    assert dropped == {LINK_FULL: 4}


def test_an_end_after_that_of_the_link_raises_nothing_in_the_thread(monkeypatch):
    raised, sent = [], threading.Event()
    monkeypatch.setattr(threading, 'excepthook', raised.append)
    sender = LinkSender(lambda _: sent.set(), lambda _: None, limit=1)
    sender.send(b'')
    assert sent.wait(LIMIT_S)

    def end() -> None:
        raise zenoh.ZError('session closed')

    sender.close(end)
    sender._thread.join(LIMIT_S)
    assert not sender._thread.is_alive() and not raised


# a Zenoh link ends in time, whatever its peer does


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

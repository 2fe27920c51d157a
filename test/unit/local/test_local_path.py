# SPDX-License-Identifier: Apache-2.0
"""
The local path between two ends in one process, over a real socket: requests in shared pages,
replies, versions, and peers that do not keep to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
import errno
import fcntl
import gc
import os
import queue
import random
import resource
import socket
import tempfile
import threading
from typing import Any

import pytest
from support.waiting import wait_until

from lerobot_serve.contract.records import Extension
from lerobot_serve.errors import UserError
from lerobot_serve.local import frames
from lerobot_serve.local.access import Access, access_of_group
from lerobot_serve.local.endpoint import (
    DENIED,
    EXPIRED,
    LocalEndpoint,
    MALFORMED,
)
from lerobot_serve.local.offer import encode, KEY, Offer, socket_address, take
from lerobot_serve.local.pages import PAGES_LIMIT, WrittenPage, WrittenPages
from lerobot_serve.local.path import LocalPath

TOPIC = '/robot/action_chunk'
LIFESPAN_S = 10.0
FAMILY = socket.AF_UNIX, socket.SOCK_SEQPACKET


class Server:
    """An endpoint with its thread; it keeps requests until they are taken."""

    def __init__(self, access: Access = Access(), folder: str = '') -> None:  # noqa: B008
        self.requests: queue.SimpleQueue[bytes | memoryview] = queue.SimpleQueue()
        self.drops: Counter[str] = Counter()
        self.endpoint = LocalEndpoint(access, self.requests.put, self._drop, folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.endpoint.run, args=(self._stop,), daemon=True)
        self._thread.start()

    def _drop(self, reason: str) -> None:
        self.drops[reason] += 1

    def take(self) -> bytes | memoryview:
        return self.requests.get(timeout=10)

    def close(self) -> None:
        self._stop.set()
        self.endpoint.wake()
        self._thread.join()
        self.endpoint.close()


class Client:
    """A path with what it receives: in its own thread, or while `chunk` waits."""

    callers_receive = False

    def __init__(self, lifespan_s: float = LIFESPAN_S, access: Access = Access()) -> None:  # noqa: B008
        self.chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # whether the server was lost, each time that it has gone
        self.gone: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.log: list[str] = []
        self.path = LocalPath(
            self._on_chunk,
            self.gone.put,
            lifespan_s=lifespan_s,
            access=access,
            log=self.log.append,
            callers_receive=self.callers_receive,
        )
        self.signal = self.path.signal()

    def _on_chunk(self, raw: bytes) -> None:
        self.chunks.put(raw)
        self.signal.set()

    def chunk(self) -> bytes:
        """Return the next reply."""
        while self.chunks.empty():
            assert self.signal.wait(10)
            self.signal.clear()
        return self.chunks.get_nowait()


@pytest.fixture(params=['thread', 'caller'], autouse=True)
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who receives replies at the client."""
    monkeypatch.setattr(Client, 'callers_receive', request.param == 'caller')


@contextmanager
def served(**settings: Any) -> Iterator[tuple[Server, Client]]:
    """A server and a client that is attached to it."""
    server, client = Server(**settings), Client()
    try:
        client.path.use(server.endpoint.offer(TOPIC))
        assert client.path.is_connected, client.log
        yield server, client
    finally:
        client.path.close()
        server.close()


@contextmanager
def raw_client(server: Server) -> Iterator[socket.socket]:
    """A client that sends what a test wants."""
    with socket.socket(*FAMILY) as peer:
        peer.connect(socket_address(server.endpoint.address))
        peer.settimeout(10)
        yield peer


def attached(peer: socket.socket, server: Server) -> None:
    peer.send(frames.attach(server.endpoint.offer(TOPIC).token))
    assert peer.recv(100) == frames.WELCOME


def expires() -> int:
    return 1 << 62


def test_a_request_and_its_reply_pass():
    with served() as (server, client):
        assert client.path.send(b'observation')
        request = server.take()
        assert bytes(request) == b'observation'
        assert server.endpoint.send(TOPIC, b'chunk')
        assert client.chunk() == b'chunk'


def test_requests_keep_their_order_and_content_at_every_size():
    sizes = [1, 63, 64, 4031, 4032, 4033, 300_000, 70_000, 2_000_000]
    with served() as (server, client):
        for number, size in enumerate(sizes):
            assert client.path.send(bytes([number]) * size)
        for number, size in enumerate(sizes):
            assert bytes(server.take()) == bytes([number]) * size


def test_a_request_is_read_in_place_and_its_page_used_again_once_nothing_refers_to_it():
    with served() as (server, client):
        assert client.path.send(b'first' * 1000)
        first = server.take()
        assert isinstance(first, memoryview)
        assert first.readonly
        for _ in range(3):
            assert client.path.send(b'second' * 100)
            assert bytes(server.take()) == b'second' * 100
        # the pages of the others were used meanwhile
        assert bytes(first) == b'first' * 1000
        pages = client.path._connection._pages._pages
        assert len(pages) <= 3
        del first
        gc.collect()
        assert any(page.is_free for page in pages)


def test_a_view_keeps_its_page():
    numpy = pytest.importorskip('numpy')
    with served() as (server, client):
        assert client.path.send(b'\x07' * 100)
        view = numpy.frombuffer(server.take(), numpy.uint8, 10, 5)
        for _ in range(5):
            assert client.path.send(b'\x09' * 100)
            server.take()
        assert (view == 7).all()


def test_a_client_without_a_free_page_uses_the_link_around():
    with served() as (server, client):
        held = []
        while client.path.send(b'request'):
            held.append(server.take())
        assert len(held) == PAGES_LIMIT
        held.clear()
        assert client.path.send(b'request')


def test_pages_have_a_limit_of_bytes():
    pages = WrittenPages(bytes_limit=100_000)
    assert pages.write((b'a' * 60_000,), 60_000)
    assert pages.write((b'a' * 60_000,), 60_000) is None
    pages.close()


def test_a_larger_request_replaces_a_page_that_is_too_small():
    with served() as (server, client):
        for size in (100, 100_000, 100):
            assert client.path.send(b'x' * size)
            assert len(server.take()) == size
            gc.collect()
        assert len(client.path._connection._pages._pages) <= 2


def test_a_late_request_is_dropped_and_counted():
    server, client = Server(), Client(lifespan_s=-1.0)
    try:
        client.path.use(server.endpoint.offer(TOPIC))
        assert client.path.send(b'late')
        wait_until(lambda: server.drops[EXPIRED] == 1, 'the drop of a late request')
        assert client.path._connection._pages._pages[0].is_free
        assert server.requests.empty()
    finally:
        client.path.close()
        server.close()


def test_what_the_path_cannot_carry_goes_around_it():
    with served() as (server, _):
        assert not server.endpoint.send(TOPIC, bytes(frames.CHUNK_BYTES_LIMIT + 1))
        assert not server.endpoint.send('/other/action_chunk', b'chunk')
        assert not server.endpoint.send(TOPIC, b'chunk', lambda: False)
        assert server.endpoint.send(TOPIC, bytes(frames.CHUNK_BYTES_LIMIT))


def test_replies_that_nobody_reads_hold_up_nobody():
    server = Server()
    with raw_client(server) as peer:
        attached(peer, server)
        sent = 0
        while server.endpoint.send(TOPIC, bytes(10_000)):
            sent += 1
        assert 0 < sent < 1000
    server.close()


def test_a_topic_without_a_session_has_no_client_and_an_old_token_is_refused():
    with served() as (server, client):
        offer = server.endpoint.offer(TOPIC)
        assert server.endpoint.has_client(TOPIC)
        server.endpoint.retain(set())
        assert not server.endpoint.has_client(TOPIC)
        assert not server.endpoint.send(TOPIC, b'chunk')
        # its requests still arrive: the server says that the session is over
        assert client.path.send(b'request')
        assert server.take() == b'request'
        other = Client()
        other.path.use(offer)
        assert not other.path.is_connected
        assert other.log == ['the local path of the server is not used: the session is over']


def test_a_session_that_is_refused_leaves_those_of_others_their_connection():
    with served() as (server, client):
        over = server.endpoint.offer('/over/action_chunk')
        server.endpoint.retain({TOPIC})
        client.path.use(over)
        assert client.log == ['the local path of the server is not used: the session is over']
        assert client.path.send(b'request')
        assert server.take() == b'request'
        assert server.endpoint.send(TOPIC, b'chunk')
        assert client.chunk() == b'chunk'
        assert client.gone.empty()


def test_one_connection_has_the_sessions_of_many():
    with served() as (server, client):
        client.path.use(server.endpoint.offer('/second/action_chunk'))
        assert server.endpoint.send(TOPIC, b'1')
        assert server.endpoint.send('/second/action_chunk', b'2')
        assert [client.chunk() for _ in range(2)] == [b'1', b'2']


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_signal_that_another_thread_sets_ends_the_wait_of_the_one_that_receives():
    with served() as (_, client):
        for _ in range(200):
            client.signal.clear()
            setter = in_thread(client.signal.set)
            assert client.signal.wait(10)
            setter.join()
        client.signal.clear()
        assert not client.signal.wait(0.01)


def test_of_several_that_wait_each_is_served_whoever_receives():
    with served() as (server, client):
        results: queue.SimpleQueue[bool] = queue.SimpleQueue()
        signals = [client.path.signal() for _ in range(3)]
        waiting = [in_thread(lambda each=each: results.put(each.wait(10))) for each in signals]
        for signal in signals:
            assert server.endpoint.send(TOPIC, b'chunk')
            assert client.chunk() == b'chunk'
            signal.set()
        for thread in waiting:
            thread.join(10)
        assert [results.get(timeout=10) for _ in signals] == [True] * 3
        # one that receives leaves: another takes its place
        leaving = in_thread(lambda: client.path.signal().wait(0.2))
        assert server.endpoint.send(TOPIC, b'last')
        assert client.chunk() == b'last'
        leaving.join(10)


@pytest.mark.parametrize('is_waiting', [False, True])
def test_the_end_of_the_server_is_seen_whether_one_waits_or_not(is_waiting: bool):
    server, client = Server(), Client()
    client.path.use(server.endpoint.offer(TOPIC))
    before = len(os.listdir('/proc/self/fd'))
    waiting = in_thread(lambda: client.signal.wait(10)) if is_waiting else None
    # a reply that nobody has taken yet comes first
    assert server.endpoint.send(TOPIC, b'chunk')
    server.close()
    assert client.gone.get(timeout=10) is False
    assert client.chunks.get(timeout=10) == b'chunk'
    client.signal.set()
    if waiting:
        waiting.join(10)
        assert not waiting.is_alive()
    assert len(os.listdir('/proc/self/fd')) < before


def test_a_client_that_comes_back_takes_the_replies_over():
    with served() as (server, before):
        after = Client()
        after.path.use(server.endpoint.offer(TOPIC))
        before.path.close()
        assert server.endpoint.send(TOPIC, b'chunk')
        assert after.chunk() == b'chunk'
        wait_until(lambda: len(server.endpoint._selector.get_map()) == 3, 'the end of one')
        assert server.endpoint.has_client(TOPIC)
        after.path.close()
        wait_until(lambda: not server.endpoint.has_client(TOPIC), 'the end of the other')


def test_a_server_that_ends_says_so_and_one_that_dies_is_lost():
    server, client = Server(), Client()
    client.path.use(server.endpoint.offer(TOPIC))
    server.close()
    wait_until(lambda: not client.path.is_connected, 'the end of the server')
    assert client.gone.get(timeout=10) is False
    assert not client.path.send(b'request')
    server = Server()
    client.path.use(server.endpoint.offer(TOPIC))
    # as the kernel does for a process that was killed
    for key in tuple(server.endpoint._selector.get_map().values()):
        if key.data:
            key.data.socket.shutdown(socket.SHUT_RDWR)
    assert client.gone.get(timeout=10) is True
    assert not client.path.is_connected
    server.close()


def test_another_version_is_refused_with_both():
    server, client = Server(), Client()
    offer = server.endpoint.offer(TOPIC)
    try:
        with raw_client(server) as peer:
            token = offer.token
            peer.send(frames.ATTACH.pack(frames.Frame.ATTACH, 99, token))
            assert peer.recv(100) == frames.refused('version 99, the server has 1')
        client.path.use(offer)
        assert client.path.is_connected
    finally:
        client.path.close()
        server.close()


def test_a_folder_whose_path_is_too_long_is_refused_with_a_remedy(tmp_path):
    folder = tmp_path / ('x' * 100)
    folder.mkdir()
    with pytest.raises(UserError, match='too long; set local_folder to a folder'):
        Server(folder=str(folder))


@pytest.mark.parametrize('address', ['@lerobot_serve-of-another-host', '/no/such/socket'])
def test_a_server_of_another_host_is_no_news(address: str):
    client = Client()
    client.path.use(Offer(address, b'0' * frames.TOKEN_BYTES, frames.VERSION))
    assert not client.path.is_connected
    assert client.log == []


def shrinkable() -> int:
    descriptor = os.memfd_create('page', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    return descriptor


def sealed(size: int) -> int:
    descriptor = os.memfd_create('page', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def a_file() -> int:
    return os.open('/proc/self/status', os.O_RDONLY)


def a_pipe() -> int:
    read_end, write_end = os.pipe()
    os.close(write_end)
    return read_end


def request(page: int = 0, size: int = 10) -> bytes:
    return frames.request(frames.Request(page, size, expires()))


def short(value: object) -> str:
    return getattr(value, '__name__', str(value)[:30])


@pytest.mark.parametrize(
    ('frame', 'descriptor'),
    [
        (b'\xff', None),
        (b'\x00', None),
        (bytes([frames.Frame.CHUNK]) + b'x', None),
        (request()[:-1], None),
        (request() + b'\0', None),
        (b'\x01', None),
        (bytes(frames.FRAME_BYTES_LIMIT + 1), None),
        # a page that was never sent, and what is not a page
        (request(3), None),
        (request(), shrinkable),
        (request(), a_file),
        (request(), a_pipe),
        (request(), lambda: sealed(0)),
        (request(), lambda: sealed(64)),
        (request(0, 0), lambda: sealed(4096)),
        (request(0, 4096), lambda: sealed(4096)),
        (request(0, 0xFFFFFFFF), lambda: sealed(4096)),
        (request(PAGES_LIMIT), lambda: sealed(4096)),
    ],
    ids=short,
)
def test_a_hostile_client_is_disconnected_and_counted(frame: bytes, descriptor: Any):
    with served() as (server, client):
        before = len(os.listdir('/proc/self/fd'))
        with raw_client(server) as peer:
            attached(peer, server)
            passed = [descriptor()] if descriptor else []
            socket.send_fds(peer, [frame], passed)
            for each in passed:
                os.close(each)
            assert peer.recv(100) == frames.CLOSE
            assert peer.recv(100) == b''
            assert server.drops[MALFORMED] == 1
        assert server.requests.empty()
        # the other client is still served
        client.path.use(server.endpoint.offer(TOPIC))
        assert client.path.send(b'request')
        assert server.take() == b'request'
        gc.collect()
        assert len(os.listdir('/proc/self/fd')) <= before + 1


def test_several_descriptors_and_a_request_before_a_session_are_malformed():
    server = Server()
    with raw_client(server) as peer:
        attached(peer, server)
        pages = [sealed(4096) for _ in range(3)]
        socket.send_fds(peer, [request()], pages)
        assert peer.recv(100) == frames.CLOSE
    with raw_client(server) as peer:
        socket.send_fds(peer, [request()], pages[:1])
        assert peer.recv(100) == frames.CLOSE
    for each in pages:
        os.close(each)
    assert server.drops[MALFORMED] == 2
    server.close()


def test_a_page_that_is_in_use_is_not_read_again():
    server = Server()
    page = WrittenPage(100)
    page.write((b'first',))
    with raw_client(server) as peer:
        attached(peer, server)
        socket.send_fds(peer, [request(size=5)], [page.descriptor])
        kept = server.take()
        page.write((b'other',))
        peer.send(request(size=5))
        assert peer.recv(100) == frames.CLOSE
    # a hostile peer of the same user changes what is read: it gets what it deserves
    assert bytes(kept) == b'other'
    page.close()
    server.close()


def test_random_frames_end_their_connection_alone():
    chance = random.Random(1)
    with served() as (server, client):
        for _ in range(200):
            with raw_client(server) as peer:
                if chance.random() < 0.8:
                    attached(peer, server)
                for _ in range(chance.randrange(1, 6)):
                    size = chance.choice((1, 3, 15, 19, 70_000))
                    frame = bytes([chance.randrange(8)]) + chance.randbytes(size - 1)
                    pages = [sealed(chance.choice((0, 64, 4096)))] * chance.randrange(3)
                    try:
                        socket.send_fds(peer, [frame], pages)
                    except (BrokenPipeError, ConnectionResetError):
                        break
                    finally:
                        for each in set(pages):
                            os.close(each)
        client.path.use(server.endpoint.offer(TOPIC))
        while not server.requests.empty():
            server.take()
        assert client.path.send(b'request')
        assert server.take() == b'request'
        assert server.endpoint.send(TOPIC, b'chunk')
        assert client.chunk() == b'chunk'


def test_a_client_without_a_descriptor_left_is_turned_away():
    with served() as (server, client), socket.socket(*FAMILY) as peer:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # the lowest number that is free
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            peer.connect(socket_address(server.endpoint.address))
            assert peer.recv(100) == b''
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert server.drops[DENIED] == 1
        assert client.path.send(b'request')
        assert server.take() == b'request'
        server.endpoint.wake()


def test_a_host_without_memory_sends_over_the_link_around(monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, 'no space')

    with served() as (server, client):
        monkeypatch.setattr(os, 'posix_fallocate', full)
        before = len(os.listdir('/proc/self/fd'))
        assert not client.path.send(b'request')
        assert len(os.listdir('/proc/self/fd')) == before
        monkeypatch.undo()
        assert client.path.send(b'request')
        assert server.take() == b'request'


class OtherUser(Access):
    """An access for which the peer is of another user, in the group or not."""

    is_in_group = True

    def is_same_user(self, peer: socket.socket) -> bool:
        return False

    def is_allowed(self, peer: socket.socket) -> bool:
        return self.is_in_group


def test_a_request_of_another_user_is_copied_before_it_is_read():
    with served(access=OtherUser()) as (server, client):
        assert client.path.send(b'observation')
        request_ = server.take()
        assert isinstance(request_, bytes)
        assert client.path._connection._pages._pages[0].is_free


def test_another_user_is_not_let_in_on_either_side():
    class Denied(OtherUser):
        is_in_group = False

    server, client = Server(access=Denied()), Client()
    client.path.use(server.endpoint.offer(TOPIC))
    assert not client.path.is_connected
    wait_until(lambda: server.drops[DENIED] == 1, 'a count')
    server.close()
    server, client = Server(), Client(access=Denied())
    client.path.use(server.endpoint.offer(TOPIC))
    assert not client.path.is_connected
    assert client.log == [
        'the local path of the server is not used: the server belongs to another user'
    ]
    server.close()


def test_the_kernel_says_who_a_peer_is():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        assert Access().is_same_user(left)
        assert Access(os.getgid()).is_allowed(left)


def test_an_unknown_group_is_refused_with_a_remedy():
    assert access_of_group('') == Access()
    with pytest.raises(UserError) as refused:
        access_of_group('no-such-group')
    assert str(refused.value) == (
        "local_group is 'no-such-group', and this host has no such group; create it with "
        '`groupadd no-such-group`, or leave local_group empty for processes of the same user'
    )


def test_a_socket_in_a_folder_is_removed_at_the_end():
    # a path of a socket is short
    with tempfile.TemporaryDirectory(prefix='ls') as folder:
        with served(folder=folder) as (server, client):
            assert client.path.send(b'request')
            assert server.take() == b'request'
            assert len(os.listdir(folder)) == 1
        assert not os.listdir(folder)


def test_a_folder_that_is_not_there_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(UserError) as refused:
        Server(folder=str(tmp_path / 'none'))
    assert 'local_folder' in str(refused.value)


def test_an_offer_is_taken_out_of_the_extensions():
    offer = Offer('@name', b'0' * frames.TOKEN_BYTES, 1)
    other = Extension('other', b'')
    assert take([other, Extension(KEY, encode(offer))]) == (offer, [other])
    assert take([other]) == (None, [other])


@pytest.mark.parametrize(
    'value',
    [
        b'',
        b'\xff',
        b'{}',
        b'[]',
        b'{"address": "@name", "token": "AAAA", "version": 1}',
        b'{"address": "@", "token": "MDAwMDAwMDAwMDAwMDAwMA==", "version": 1}',
        b'{"address": "@name", "token": 5, "version": 1}',
    ],
)
def test_an_offer_that_cannot_be_read_is_none(value: bytes):
    assert take([Extension(KEY, value)]) == (None, [])

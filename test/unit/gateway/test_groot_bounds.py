# SPDX-License-Identifier: Apache-2.0
"""Bounds of the door groot: TLS, half-open connections, sizes, slow and silent peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
import socket
import ssl

import msgpack
import numpy as np
import pytest
from support.gateway.certificates import certificate_files
from support.gateway.gateway_rig import exposure_of
from support.gateway.groot_client import GrootClient, observation
from support.gateway.groot_rig import client_of, GrootRig, running
from support.gateway.robot_client_rig import soon
from support.gateway.zmtp_peer import frame, GREETING, MORE, ready, tls_bridge, zmtp_peer, ZmtpPeer
from support.policies.remote_peers import pack_npy
import zmq

from lerobot_serve.gateway.groot import connection, server, zmtp
from lerobot_serve.gateway.groot.zmtp import ZmtpError

PING = msgpack.packb({'endpoint': 'ping'})
ASKED = {'endpoint': 'get_action', 'data': {'observation': observation()}}
ACT = msgpack.packb(ASKED, default=pack_npy)
SHORT = {'handshake_timeout_s': 0.1}


@pytest.fixture
def tls_files(tmp_path) -> tuple[str, str, str]:
    return certificate_files(tmp_path)


async def is_served(rig: GrootRig) -> bool:
    async with client_of(rig) as good:
        return (await asyncio.to_thread(good.call, 'ping'))['status'] == 'ok'


# half-open connections


async def half_a_greeting(peer: ZmtpPeer) -> None:
    peer.writer.write(GREETING[:40])


async def a_greeting_alone(peer: ZmtpPeer) -> None:
    peer.writer.write(GREETING)


async def half_a_ready(peer: ZmtpPeer) -> None:
    peer.writer.write(GREETING + ready()[:20])


@pytest.mark.parametrize('say', [half_a_greeting, a_greeting_alone, half_a_ready])
async def test_a_handshake_that_does_not_end_is_given_up(
    say: Callable[[ZmtpPeer], Awaitable[None]],
):
    async with running(**SHORT) as rig, zmtp_peer(rig.door.address) as peer:
        await say(peer)
        assert await is_served(rig)
        assert await peer.is_closed()
        assert rig.refused == {'no_request': 1}


# TLS


async def test_an_unmodified_client_reaches_tls_through_a_bridge(tls_files):
    async with (
        running(exposure_of('groot', tls_files)) as rig,
        tls_bridge(rig.door.address, tls_files[0]) as endpoint,
    ):
        assert rig.door.address.startswith('tls://')
        client = GrootClient(endpoint)
        try:
            action, _ = await asyncio.to_thread(client.get_action, observation())
        finally:
            await asyncio.to_thread(client.close)
        assert action['actions'].shape == (1, 4, 3)


async def test_what_comes_with_the_end_of_the_tls_handshake_is_not_lost(tls_files):
    """A client may send with its last message of the handshake."""

    def talk(port: int) -> bytes:
        context = ssl.create_default_context(cafile=tls_files[0])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname='127.0.0.1')
        with socket.create_connection(('127.0.0.1', port), timeout=20) as connection:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(1 << 16))
            tls.write(GREETING + ready() + frame(PING))
            connection.sendall(outgoing.read())
            received = b''
            while b'Server is running' not in received:
                try:
                    received += tls.read(1 << 16)
                except ssl.SSLWantReadError:
                    incoming.write(connection.recv(1 << 16))
        return received

    async with running(exposure_of('groot', tls_files)) as rig:
        port = int(rig.door.address.rpartition(':')[2])
        assert b'ROUTER' in await asyncio.to_thread(talk, port)


async def test_a_plain_client_at_a_tls_door_is_refused_and_counted(tls_files):
    async with (
        running(exposure_of('groot', tls_files)) as rig,
        zmtp_peer(rig.door.address) as peer,
    ):
        peer.writer.write(GREETING + ready() + frame(PING))
        assert await peer.is_closed()
        assert rig.refused == {'no_request': 1} and not rig.upstream.opened


# messages


async def test_a_message_in_endlessly_many_parts_ends_its_connection():
    async with running() as rig, zmtp_peer(rig.door.address) as peer:
        await peer.greet()
        peer.writer.write(frame(b'x', MORE) * 1000)
        assert await peer.is_closed()
        assert rig.refused == {'too_big': 1}
        assert await is_served(rig)


async def test_the_parts_of_a_message_are_bounded_together():
    async with running(max_message_mb=0.001) as rig:
        async with zmtp_peer(rig.door.address) as peer:
            await peer.greet()
            for _ in range(3):
                peer.writer.write(frame(bytes(400), MORE))
            assert await peer.is_closed()
        # a length alone, before any byte of it
        async with zmtp_peer(rig.door.address) as peer:
            await peer.greet()
            peer.writer.write(frame(bytes(1001))[:9])
            assert await peer.is_closed()
        assert rig.refused == {'too_big': 2}


async def test_a_request_in_several_parts_is_answered_with_a_sentence():
    async with running() as rig, zmtp_peer(rig.door.address) as peer:
        await peer.greet()
        peer.writer.write(frame(b'one', MORE) + frame(PING))
        assert b'a request is one frame' in await peer.receive()
        peer.writer.write(frame(b'', MORE) + frame(PING))
        assert await peer.receive() == b'' and b'Server is running' in await peer.receive()


async def test_a_message_that_does_not_end_is_given_up():
    async with running(read_timeout_s=0.1) as rig, zmtp_peer(rig.door.address) as peer:
        await peer.greet()
        peer.writer.write(frame(bytes(100))[:50])
        assert await peer.is_closed()
        assert rig.refused == {'slow': 1}


async def test_a_client_that_stops_reading_is_disconnected():
    async with running(write_timeout_s=0.2) as rig, zmtp_peer(rig.door.address) as peer:
        rig.upstream.actions = lambda _: np.zeros((400_000, 3), np.float32)
        await peer.greet()
        peer.writer.transport.pause_reading()
        while 'stopped_reading' not in rig.refused:
            peer.writer.write(frame(ACT))
            await asyncio.sleep(0.02)
        assert await is_served(rig)


# peers


async def test_a_silent_peer_is_pinged_and_then_disconnected(monkeypatch):
    monkeypatch.setattr(connection, 'HEARTBEAT_INTERVAL_S', 0.05)
    async with running() as rig:
        async with zmtp_peer(rig.door.address) as peer:
            await peer.greet()
            assert [await peer.receive() for _ in range(3)] == [b'\x04PING\0\0'] * 3
            assert await peer.is_closed()
            assert rig.refused == {'silent': 1}
        # a socket of ZeroMQ answers pings
        async with client_of(rig) as client:
            await asyncio.to_thread(client.call, 'ping')
            await asyncio.sleep(0.5)
            assert rig.door.connection_count == 1
            assert rig.refused == {'silent': 1}


async def test_pings_of_a_client_are_answered():
    async with running() as rig, zmtp_peer(rig.door.address) as peer:
        await peer.greet()
        peer.writer.write(frame(b'\x04PING\x00\x01context', 4))
        assert await peer.receive() == b'\x04PONGcontext'


async def test_more_connections_than_allowed_are_refused_and_one_at_rest_gives_way(monkeypatch):
    async with running(max_connections=1) as rig, zmtp_peer(rig.door.address) as first:
        await first.greet()
        async with zmtp_peer(rig.door.address) as second:
            assert await second.is_closed()
        assert rig.refused == {'max_connections': 1}
        monkeypatch.setattr(server, 'GIVES_WAY_S', 0.0)
        async with zmtp_peer(rig.door.address) as third:
            await third.greet()
            assert await first.is_closed()
        assert rig.refused == {'max_connections': 1, 'gave_way': 1}


async def test_a_long_handshake_gives_way(monkeypatch):
    async with running(max_connections=2) as rig, zmtp_peer(rig.door.address) as resting:
        await resting.greet()
        async with zmtp_peer(rig.door.address) as mute:
            await soon(lambda: rig.door.connection_count == 2)
            async with zmtp_peer(rig.door.address) as early:
                assert await early.is_closed()
            assert rig.refused == {'max_connections': 1}
            monkeypatch.setattr(server, 'HANDSHAKE_GIVES_WAY_S', 0.0)
            # bare connections go first
            monkeypatch.setattr(server, 'GIVES_WAY_S', 0.0)
            assert await is_served(rig)
            assert await mute.is_closed()
            assert rig.refused == {'max_connections': 1, 'gave_way': 1}
            resting.writer.write(frame(PING))
            assert b'Server is running' in await resting.receive()


async def test_a_client_with_an_identity_keeps_its_session_over_a_new_connection():
    async with running() as rig:
        for _ in range(2):
            async with client_of(rig) as client:
                client.socket.disconnect(rig.door.address)
                client.socket.setsockopt(zmq.IDENTITY, b'arm')
                client.socket.connect(rig.door.address)
                await asyncio.to_thread(client.get_action, observation())
        assert rig.upstream.opened == 1


def changed(at: int, data: bytes) -> bytes:
    return GREETING[:at] + data + GREETING[at + len(data) :]


REFUSED = [
    (b'GET / HTTP/1.1\r\n' * 4, None),
    (changed(10, b'\x01'), None),
    (changed(12, b'CURVE'), None),
    (GREETING + ready(b'SUB'), b'REQ and DEALER are served'),
    (GREETING + frame(b'\x04PING\0\0', 4), b'not READY'),
    (GREETING + frame(bytes(5000), 4), b'a command has 5000 bytes'),
    (GREETING + frame(b'x'), b'a command is expected'),
]


@pytest.mark.parametrize(('said', 'reason'), REFUSED)
async def test_what_is_not_served_ends_with_its_reason(said: bytes, reason: bytes | None):
    async with running() as rig, zmtp_peer(rig.door.address) as peer:
        peer.writer.write(said)
        received = b''
        while data := await peer.reader.read(1 << 16):
            received += data
        assert (reason or b'\x05ERROR') in received
        assert rig.refused == {'malformed': 1}


def test_ready_is_read_within_its_bytes():
    body = ready()[9 + 6 :]
    assert zmtp.read_ready(body + b'\x08Identity\0\0\0\x03arm') == b'arm'
    for size in range(1, len(body)):
        with pytest.raises(ZmtpError):
            zmtp.read_ready(body[:size])
    with pytest.raises(ZmtpError, match='identity has 256 bytes'):
        zmtp.read_ready(body + b'\x08Identity\0\0\1\0' + bytes(256))

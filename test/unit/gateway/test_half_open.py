# SPDX-License-Identifier: Apache-2.0
"""
Half-open connections at each door: TCP that says nothing, half a TLS handshake, half a request.

Each ends within a bound, while another client is served. Those of the door groot are in
test_groot_bounds.py, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
from dataclasses import replace
from pathlib import Path
import ssl

import pytest
from support.gateway.certificates import certificate_files
from support.gateway.gateway_rig import DoorRig, grpc_channel

from lerobot_serve.access import connections
from lerobot_serve.gateway.access import open_exposure
from lerobot_serve.gateway.door_parameters import DOORS
from lerobot_serve.gateway.doors import load_door
from lerobot_serve.gateway.grpc_server import server
from lerobot_serve.gateway.parameters import door_settings, GatewayParameters

pytestmark = pytest.mark.usefixtures('grpc_thread')
WEB, GRPC = {'http': '/health', 'openpi': '/healthz'}, ('lerobot', 'policy_service')
# the head of a ClientHello, and nothing after it
HALF_HELLO = b'\x16\x03\x01\x02\x00\x01'
HALF_HEAD = b'GET /health HTTP/1.1\r\nHost: loc'
PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
PLAIN = [
    *((door, b'') for door in DOORS),
    *((door, HALF_HEAD) for door in WEB),
    *((door, half) for door in GRPC for half in (PREFACE[:12], PREFACE)),
]
LIMIT_S = 0.2


class Doorway(DoorRig):
    """One door with the bounds of its parameters, and connections to it."""

    def __init__(self, name: str, files: tuple[str, str, str] | None, **changes: object) -> None:
        super().__init__()
        self.name, self.authority = name, files[0] if files else ''
        _, certificate, key = files or ('', '', '')
        given = {'port': 0, 'certificate_file': certificate, 'key_file': key, **changes}
        settings = replace(door_settings(GatewayParameters(), name), **given)
        exposure = open_exposure(name, settings)
        self.door = load_door(name)(self.gateway, exposure, settings)

    @contextlib.asynccontextmanager
    async def said(self, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
        """Connect, and send these bytes only."""
        reader, writer = await asyncio.open_connection(*self.host_and_port)
        writer.write(data)
        try:
            yield reader
        finally:
            writer.close()

    async def is_served(self) -> bool:
        """Return whether another client gets an answer now."""
        if self.name in WEB:
            context = ssl.create_default_context(cafile=self.authority) if self.authority else None
            reader, writer = await asyncio.open_connection(*self.host_and_port, ssl=context)
            writer.write(f'GET {WEB[self.name]} HTTP/1.0\r\nHost: localhost\r\n\r\n'.encode())
            head = await reader.readline()
            writer.close()
            return b' 200 ' in head
        authority = Path(self.authority).read_bytes() if self.authority else b''
        async with grpc_channel(self.door.address, authority) as channel:
            await channel.channel_ready()
        return True


def doorway(
    name: str, files: tuple[str, str, str] | None = None, **changes: object
) -> contextlib.AbstractAsyncContextManager[Doorway]:
    return Doorway(name, files, **changes).running()


async def ends(reader: asyncio.StreamReader) -> None:
    """Read until the end of a connection."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


@pytest.fixture
def short_limits(monkeypatch):
    monkeypatch.setattr(connections, 'HEAD_LIMIT_S', LIMIT_S)
    monkeypatch.setattr(connections, 'CHECK_S', 0.05)
    monkeypatch.setattr(connections, 'HANDSHAKE_LIMIT_S', LIMIT_S)
    monkeypatch.setattr(server, 'HANDSHAKE_MS', round(1000 * LIMIT_S))


def bounds_of(name: str) -> dict[str, object]:
    return {'handshake_timeout_s': LIMIT_S} if name == 'groot' else {}


@pytest.mark.parametrize(('name', 'data'), PLAIN)
async def test_a_plain_connection_that_does_not_go_on_ends(name, data, short_limits):
    async with doorway(name, **bounds_of(name)) as rig, rig.said(data) as reader:
        if name != 'groot':
            assert await rig.is_served()
        await ends(reader)
        # gRPC counts none
        assert rig.refused == ({} if name in GRPC else {'no_request': 1})


@pytest.mark.parametrize('data', [b'', HALF_HELLO])
@pytest.mark.parametrize('name', DOORS)
async def test_half_a_tls_handshake_ends(name, data, short_limits, tmp_path):
    files = certificate_files(tmp_path)
    async with doorway(name, files, **bounds_of(name)) as rig, rig.said(data) as reader:
        if name != 'groot':
            assert await rig.is_served()
        await ends(reader)
        assert rig.refused == ({} if name in GRPC else {'no_request': 1})


@pytest.mark.parametrize('name', DOORS)
async def test_half_open_connections_are_bounded_in_number(name, tmp_path):
    """With the limits of time as they are: what is above the number ends one at once."""
    files = certificate_files(tmp_path)
    async with (
        doorway(name, files, max_connections=2) as rig,
        contextlib.AsyncExitStack() as s,
    ):
        readers = [await s.enter_async_context(rig.said(b'')) for _ in range(6)]
        running = [asyncio.create_task(ends(each)) for each in readers]
        while sum(task.done() for task in running) < 4:
            await asyncio.sleep(0.01)
        assert rig.refused == ({} if name in GRPC else {'no_request': 4})
        await asyncio.sleep(0)
        assert sum(task.done() for task in running) == 4
        for task in running:
            task.cancel()


@pytest.mark.parametrize('name', WEB)
async def test_bare_connections_in_all_places_keep_no_client_out(name, tmp_path):
    """With the limits of time as they are."""
    files = certificate_files(tmp_path)
    async with (
        doorway(name, files, max_connections=2) as rig,
        rig.said(b'') as oldest,
        rig.said(HALF_HELLO) as second,
    ):
        # the server has accepted both before
        await asyncio.sleep(0.05)
        assert await rig.is_served()
        await ends(oldest)
        assert rig.refused == {'no_request': 1}
        still = asyncio.create_task(ends(second))
        await asyncio.sleep(0.05)
        assert not still.done()
        still.cancel()


async def test_a_place_is_free_again_once_a_half_open_connection_has_ended(tmp_path, short_limits):
    files = certificate_files(tmp_path)
    for name in (*WEB, *GRPC):
        async with doorway(name, files, max_connections=1) as rig, rig.said(b'') as reader:
            await ends(reader)
            assert await rig.is_served()

# SPDX-License-Identifier: Apache-2.0
"""The upgrade of an HTTP request to a websocket (RFC 6455, section 4.2). The event loop calls."""

from __future__ import annotations

import base64
import binascii
import hashlib

from aiohttp import web

ACCEPT_SALT = b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
KEY_BYTES, VERSION = 16, '13'


class NoWebsocket(Exception):
    """The request asks for no websocket; the text says what to do."""


def upgrade_response(request: web.Request) -> web.StreamResponse:
    """Return the reply that begins the websocket, without extensions. Raises NoWebsocket."""
    headers = request.headers
    if headers.get('Upgrade', '').strip().lower() != 'websocket':
        raise NoWebsocket('this is the door for openpi clients: open a websocket, ws://HOST:PORT')
    if headers.get('Sec-WebSocket-Version', '') != VERSION:
        raise NoWebsocket(f'Sec-WebSocket-Version must be {VERSION}')
    key = headers.get('Sec-WebSocket-Key', '')
    if not _is_key(key):
        raise NoWebsocket(f'Sec-WebSocket-Key must be {KEY_BYTES} bytes in base64')
    digest = hashlib.sha1(key.encode() + ACCEPT_SALT).digest()
    accept = base64.b64encode(digest).decode()
    return web.StreamResponse(
        status=101,
        headers={'Upgrade': 'websocket', 'Connection': 'Upgrade', 'Sec-WebSocket-Accept': accept},
    )


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        return False

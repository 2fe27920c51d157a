# SPDX-License-Identifier: Apache-2.0
"""Find out why an endpoint is not reached. The caller's thread."""

from __future__ import annotations

import socket

TRY_S = 2.0
QUIC = 'quic/'


def connection_problem(endpoint: str) -> str:
    """
    Return why a TCP connection to an endpoint fails, with the remedy; empty when it succeeds, and
    for QUIC, which has none. Zenoh itself reports each of these as a timeout.
    """
    if endpoint.startswith(QUIC):
        return ''
    host, port = split(endpoint)
    try:
        socket.create_connection((host, port), TRY_S).close()
    except ConnectionRefusedError:
        return (
            f'nothing listens on {endpoint}; start the server or router there with zenoh_listen, '
            'or correct --connect'
        )
    except socket.gaierror:
        return f'{endpoint}: the name {host} is unknown; give an address, or correct --connect'
    except OSError as error:
        return (
            f'{endpoint} does not answer ({error.strerror or error}); check the address, the '
            'network and its firewall'
        )
    return ''


def session_problem(endpoint: str, has_keys: bool) -> str:
    """Return why an endpoint that accepts a connection opens no Zenoh session."""
    if has_keys:
        return (
            f'{endpoint} refuses these keys, or is no Zenoh endpoint; use certificates of one CA, '
            'and in --connect a name or address that the certificate of the server contains'
        )
    return (
        f'{endpoint} opens no Zenoh session; it is another kind of server, or expects tls/ and '
        '--keys'
    )


def split(endpoint: str) -> tuple[str, int]:
    """Return host and port of a valid endpoint."""
    host, _, port = endpoint.partition('/')[2].rpartition(':')
    return host.strip('[]'), int(port)

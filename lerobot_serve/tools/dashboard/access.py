# SPDX-License-Identifier: Apache-2.0
"""
Who may act: one table of the token, the address and TLS. Pure.

Reading needs no token. Acting needs a token, and a connection on which no one else reads it: the
address of the dashboard is one of this machine, or the connection is TLS.
"""

from __future__ import annotations

import ipaddress

NOT_PRIVATE = (
    'acting is off: the dashboard is reached over the network without TLS, where others can read '
    'the token. Start it with --tls-certificate and --tls-key, or reach it on 127.0.0.1 through '
    '`ssh -L 8300:127.0.0.1:8300 HOST`'
)
NO_TOKEN = 'acting needs a token: open the address with #token=..., which the dashboard prints'
WRONG_TOKEN = 'the token is wrong: compare it with the file of tokens of the dashboard'


class Refused(Exception):
    """A request that is not served: a status, and a sentence with a remedy."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def check_access(token: str, name: str, *, is_private: bool) -> None:
    """
    Raise Refused for a command that is not allowed. `name` is whose token it is, empty for nobody;
    `is_private`: nobody else reads the connection.
    """
    if not is_private:
        raise Refused(403, NOT_PRIVATE)
    if not name:
        raise Refused(401, WRONG_TOKEN if token else NO_TOKEN)


def host_name(host: str) -> str:
    """Return the name in a Host header without its port, lower case; empty for none."""
    if host.startswith('['):
        return host[1:].partition(']')[0].lower()
    name, colon, port = host.rpartition(':')
    return (name if colon and port.isdigit() else host).lower()


def is_known_host(host: str, names: frozenset[str]) -> bool:
    """
    Return whether a Host header is of this site: a name of `names`, or an address. A foreign name
    that resolves to this machine is how a web page elsewhere would read the dashboard.
    """
    name = host_name(host)
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str, host: str, *, is_tls: bool) -> bool:
    """Return whether the Origin header names the site of the Host header."""
    return origin.lower() == f'{"https" if is_tls else "http"}://{host.lower()}'

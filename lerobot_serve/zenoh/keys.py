# SPDX-License-Identifier: Apache-2.0
"""
The keys of the link.

    @lerobot/SITE/SERVER/alive                        token of a policy server or router
    @lerobot/SITE/SERVER/status                       its ServerStatus, published
    @lerobot/SITE/SERVER/CLIENT/service/NAME          its services, queryables
    @lerobot/SITE/SERVER/CLIENT/alive                 token of a client
    @lerobot/SITE/SERVER/CLIENT/observation           requests
    @lerobot/SITE/SERVER/CLIENT/EPOCH/action_chunk    replies of one session
    @lerobot/SITE/SERVER/CLIENT/no_session            replies to requests without a session

Each segment of a client has its name, so that access control needs one rule for each client. The
first segment matches no wildcard: a subscriber to ** on the same network receives nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
import re

from lerobot_serve.errors import UserError
from lerobot_serve.wire.names import file_name

ROOT = '@lerobot'
SITE = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,63}')
EPOCH = re.compile(r'[0-9a-f]{8}')
ANY_CLIENT = '*'


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The keys of one policy server or router; `server` is the full name of its node."""

    site: str
    server: str

    @property
    def prefix(self) -> str:
        # no ROS name has a dot, so that no two servers share a key
        return f'{ROOT}/{self.site}/{self.server.strip("/").replace("/", ".")}'

    @property
    def alive(self) -> str:
        return f'{self.prefix}/alive'

    @property
    def status(self) -> str:
        return f'{self.prefix}/status'

    def client(self, client_id: str) -> ClientKeys:
        """Return the keys of one client; names with other characters get a hash."""
        return ClientKeys(f'{self.prefix}/{file_name(client_id)}')

    @property
    def clients(self) -> ClientKeys:
        """The keys of all clients, to subscribe to."""
        return ClientKeys(f'{self.prefix}/{ANY_CLIENT}')


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The keys of one client at one server."""

    prefix: str

    @property
    def alive(self) -> str:
        return f'{self.prefix}/alive'

    @property
    def observation(self) -> str:
        return f'{self.prefix}/observation'

    @property
    def no_session(self) -> str:
        return f'{self.prefix}/no_session'

    def service(self, name: str) -> str:
        return f'{self.prefix}/service/{name}'

    def action_chunk(self, session_epoch: int) -> str:
        return f'{self.prefix}/{session_epoch:08x}/action_chunk'

    @property
    def action_chunks(self) -> str:
        """The replies of all sessions of this client."""
        return f'{self.prefix}/*/action_chunk'


def client_segment(key: str) -> str:
    """Return the client's segment of a key below ServerKeys.clients."""
    return key.split('/')[3]


def check_site(site: str) -> str:
    """Return the name of a site. Raises UserError."""
    if not SITE.fullmatch(site):
        raise UserError(
            f'zenoh_site is {site!r}; it is one word of letters, digits, ., _ and -, at most 64, '
            'such as lab-3'
        )
    return site

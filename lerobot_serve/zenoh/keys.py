# SPDX-License-Identifier: Apache-2.0
"""
The keys of the link.

    @lerobot/SITE/SERVER/alive                              token of a policy server or router
    @lerobot/SITE/SERVER/instance/PROCESS                   token of the process that has this name
    @lerobot/SITE/SERVER/status                             its ServerStatus, published
    @lerobot/SITE/SERVER/ROLE/CLIENT/alive                  token of a client
    @lerobot/SITE/SERVER/ROLE/CLIENT/service/NAME           its service calls, queries
    @lerobot/SITE/SERVER/ROLE/CLIENT/event/NAME             copies of its calls and their replies
    @lerobot/SITE/SERVER/ROLE/CLIENT/observation            its requests
    @lerobot/SITE/SERVER/ROLE/CLIENT/no_session             replies to requests without a session
    @lerobot/SITE/SERVER/robot/CLIENT/EPOCH/action_chunk    replies to a robot in one session
    @lerobot/SITE/SERVER/router/CLIENT/replies/EPOCH        replies to a router in one session;
                                                            shadow/EPOCH and second_draw/EPOCH, too

A robot speaks only for itself, a router for all of its robots. Everything of a client is below its
segment, so that access control needs one rule for each client. The first segment matches no
wildcard: a subscriber to ** on the same network receives nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
import re

from lerobot_serve.contract.names import file_name, is_reply_key, KEY_ROOT
from lerobot_serve.errors import UserError

SITE = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,63}')
ANY = '*'
# services of requests without a session; the replies of the second
PREDICT_CHUNK, WITHDRAW = 'predict_chunk', 'withdraw'
WITHDRAWN, NOT_WITHDRAWN = b'1', b'0'
# of the sessions that a router opens
PURPOSES = ('replies', 'shadow', 'second_draw')


class Role(StrEnum):
    """What a client is to a server."""

    ROBOT = 'robot'
    ROUTER = 'router'


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The keys of one policy server or router; `server` is the full name of its node."""

    site: str
    server: str

    @property
    def prefix(self) -> str:
        return f'{KEY_ROOT}/{self.site}/{server_segment(self.server)}'

    @property
    def alive(self) -> str:
        return f'{self.prefix}/alive'

    @property
    def status(self) -> str:
        return f'{self.prefix}/status'

    def instance(self, process: str) -> str:
        """Return the key of the token of one process; `ANY` for all that have this name."""
        return f'{self.prefix}/instance/{process}'

    def client(self, role: Role, client_id: str) -> ClientKeys:
        """Return the keys of one client; names with other characters get a hash."""
        name = server_segment(client_id) if role is Role.ROUTER else client_id
        return ClientKeys(self.prefix, role, file_name(name))

    @property
    def clients(self) -> ClientKeys:
        """The keys of all clients, to subscribe to."""
        return ClientKeys(self.prefix, ANY, ANY)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The keys of one client at one server; role and client may be `ANY`."""

    server_prefix: str
    role: str
    client: str

    @property
    def prefix(self) -> str:
        return f'{self.server_prefix}/{self.role}/{self.client}'

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

    def event(self, name: str) -> str:
        """Return the key of the service events of a service, for a recorder."""
        return f'{self.prefix}/event/{name}'

    def reply(self, session_epoch: int, purpose: str = 'replies') -> str:
        """Return the key of the replies of one session; a router has one for each purpose."""
        return self._reply(f'{session_epoch:08x}', purpose)

    def replies(self, purpose: str = 'replies') -> str:
        """Return the key of the replies of all sessions of this client."""
        return self._reply(ANY, purpose)

    @property
    def all_replies(self) -> tuple[str, ...]:
        """The keys of all replies to this client, for every purpose."""
        purposes = PURPOSES if self.role == Role.ROUTER else PURPOSES[:1]
        return tuple(self.replies(purpose) for purpose in purposes)

    @property
    def heard(self) -> tuple[str, ...]:
        """The keys of requests, replies and copies of calls, for a recorder."""
        return (
            self.observation,
            self.no_session,
            self.event(ANY),
            f'{self.prefix}/{ANY}/action_chunk',
            *(f'{self.prefix}/{purpose}/{ANY}' for purpose in PURPOSES),
        )

    def _reply(self, epoch: str, purpose: str) -> str:
        parts = (purpose, epoch) if self.role == Role.ROUTER else (epoch, 'action_chunk')
        return '/'.join((self.prefix, *parts))

    def may_reply_on(self, key: str) -> bool:
        """Return whether a key is one of `replies`."""
        return is_reply_key(key) and key.startswith(f'{self.prefix}/')

    def may_speak_for(self, client_id: str) -> bool:
        """Return whether a message with this client id may come from this client."""
        return self.role == Role.ROUTER or file_name(client_id) == self.client


def server_segment(server: str) -> str:
    """Return the segment of a server; no ROS name has a dot, so that no two share one."""
    return server.strip('/').replace('/', '.')


def server_of(key: str) -> str:
    """Return the name of the server of a key."""
    return '/' + key.split('/')[2].replace('.', '/')


def client_of(key: str) -> ClientKeys:
    """Return the client of a key below ServerKeys.clients. Raises ValueError for another key."""
    parts = key.split('/', 5)
    if len(parts) < 6 or '*' in key:
        raise ValueError(f'{key[:120]!r} is not a key of one client')
    root, site, server, role, client, _ = parts
    return ClientKeys(f'{root}/{site}/{server}', role, client)


def check_site(site: str) -> str:
    """Return the name of a site. Raises UserError."""
    if not SITE.fullmatch(site):
        raise UserError(
            f'zenoh_site is {site!r}; it is one word of letters, digits, ., _ and -, at most 64, '
            'such as lab-3'
        )
    return site

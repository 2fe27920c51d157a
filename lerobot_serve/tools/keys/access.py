# SPDX-License-Identifier: Apache-2.0
"""
Who a key belongs to, and the access control of Zenoh for one router, server or hub: nothing but
what is written here. Any thread.

Zenoh knows a peer by the common name of its certificate, and checks what arrives from it (ingress)
and what is sent to it (egress).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from lerobot_serve.contract.names import file_name, is_topic
from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.keys import ANY, ClientKeys, Role, server_segment, ServerKeys

# of X.509; a later generation needs some of it
COMMON_NAME_LIMIT, GENERATION_LENGTH = 64, 4


class KeyRole(StrEnum):
    """What a key may be used for."""

    ROBOT = 'robot'
    ROUTER = 'router'
    SERVER = 'server'
    OPERATOR = 'operator'
    RECORDER = 'recorder'
    HUB = 'hub'

    @property
    def may_listen(self) -> bool:
        """Whether others connect to it; the others can never pose as one of these."""
        return self in (KeyRole.ROUTER, KeyRole.SERVER, KeyRole.HUB)

    @property
    def is_node(self) -> bool:
        """Whether its name is that of a ROS node."""
        return self in (KeyRole.ROUTER, KeyRole.SERVER)


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """
    A role, a name and, after a revocation, a generation. The name of a router or server is its
    segment in the keys of Zenoh, such as slot_a.policy_server.
    """

    role: KeyRole
    name: str
    generation: int = 1

    @property
    def folder(self) -> str:
        return f'{self.role}.{self.name}'

    @property
    def common_name(self) -> str:
        """The subject of the certificate; no name has a ~."""
        return self.folder if self.generation == 1 else f'{self.folder}~{self.generation}'

    @property
    def node(self) -> str:
        """The full name of the node of a router or server."""
        return '/' + self.name.replace('.', '/')


def new_identity(role: KeyRole, given: str) -> Identity:
    """Return the first identity of this name. Raises UserError."""
    identity = Identity(role, server_segment(given) if role.is_node else given)
    if role.is_node:
        if not is_topic(identity.node):
            raise UserError(
                f'{given!r} is not a name of a {role}; give the full name of its node, such as '
                '/slot_a/policy_server'
            )
    elif file_name(given) != given:
        hint = ', its name in the keys of Zenoh' if role == KeyRole.ROBOT else ''
        raise UserError(
            f'{given!r} is not a name of a key; allowed are at most 64 letters, digits, ., _ and '
            f'-, the first a letter or digit, such as {file_name(given)}{hint}'
        )
    limit = COMMON_NAME_LIMIT - GENERATION_LENGTH
    if len(identity.folder) > limit:
        raise UserError(
            f'{identity.folder} has {len(identity.folder)} characters; role and name have at most '
            f'{limit} in a certificate; give a shorter name'
        )
    return identity


# the kinds of messages that Zenoh has rules for
PUT, QUERY, REPLY, TOKEN = 'put', 'query', 'reply', 'liveliness_token'
SUBSCRIBE, SERVE = 'declare_subscriber', 'declare_queryable'
WATCH = ('declare_liveliness_subscriber', 'liveliness_query')
Messages = dict[str, tuple[str, ...]]
ANY_SERVER = '/' + ANY


@dataclass(frozen=True, slots=True)
class Exchange:
    """Kinds of messages with their keys, in both directions between a client and a server."""

    from_client: Messages
    from_server: Messages


@dataclass(frozen=True, slots=True)
class Grant:
    """What one peer may exchange with the node; `is_client` where the peer is the client."""

    peer: Identity
    exchange: Exchange
    is_client: bool

    def rules(self, number: int) -> Iterator[dict[str, object]]:
        inward, outward = self.exchange.from_client, self.exchange.from_server
        if not self.is_client:
            inward, outward = outward, inward
        for flow, messages in (('ingress', inward), ('egress', outward)):
            for message, keys in messages.items():
                yield {
                    'id': f'{self.peer.common_name} {number} {flow} {message}',
                    'permission': 'allow',
                    'flows': [flow],
                    'messages': [message],
                    'key_exprs': list(keys),
                }


def access_control(
    site: str, node: Identity, others: Iterable[Identity], *, direct: bool
) -> dict[str, object]:
    """
    Return `access_control` of Zenoh for a node. `others` have keys of this site that are not
    revoked; `direct` lets robots speak to a server without a router.
    """
    rules: list[dict[str, object]] = []
    policies: list[dict[str, object]] = []
    subjects: list[dict[str, object]] = []
    for peer in sorted(others):
        grants = _grants(site, node, peer, direct=direct) if peer != node else ()
        own = [rule for number, grant in enumerate(grants) for rule in grant.rules(number)]
        if own:
            name = peer.common_name
            policies.append({'rules': [rule['id'] for rule in own], 'subjects': [name]})
            subjects.append({'id': name, 'cert_common_names': [name]})
            rules += own
    return {
        'enabled': True,
        'default_permission': 'deny',
        'rules': rules,
        'subjects': subjects,
        'policies': policies,
    }


def _grants(site: str, node: Identity, peer: Identity, *, direct: bool) -> Iterator[Grant]:
    at = ServerKeys(site, ANY_SERVER if node.role == KeyRole.HUB else node.node)
    is_hub = node.role == KeyRole.HUB
    match peer.role:
        case KeyRole.ROBOT if direct or node.role != KeyRole.SERVER:
            yield Grant(peer, _client(at, Role.ROBOT, peer.name), True)
        case KeyRole.ROUTER if node.role != KeyRole.ROUTER:
            yield Grant(peer, _client(at, Role.ROUTER, peer.node), True)
            if is_hub:
                yield Grant(peer, _all_clients(ServerKeys(site, peer.node)), False)
        case KeyRole.SERVER if node.role == KeyRole.ROUTER:
            own = _client(ServerKeys(site, peer.node), Role.ROUTER, node.node)
            yield Grant(peer, own, False)
        case KeyRole.SERVER if is_hub:
            yield Grant(peer, _all_clients(ServerKeys(site, peer.node)), False)
        case KeyRole.OPERATOR:
            yield Grant(peer, _operator(at), True)
        case KeyRole.RECORDER if not is_hub:
            yield Grant(peer, _recorder(at), True)
        case KeyRole.HUB if not is_hub:
            yield Grant(peer, _all_clients(at), True)
            if node.role == KeyRole.ROUTER:
                own = _client(ServerKeys(site, ANY_SERVER), Role.ROUTER, node.node)
                yield Grant(peer, own, False)


def _client(at: ServerKeys, role: Role, name: str) -> Exchange:
    """Return what a robot or router exchanges with a server, below its own segment alone."""
    own = at.client(role, name)
    return _exchange(at, own, own.all_replies, from_hub=())


def _all_clients(at: ServerKeys) -> Exchange:
    """Return what a hub passes between a server and all of its clients and operators."""
    replies = tuple(key for role in Role for key in ClientKeys(at.prefix, role, ANY).all_replies)
    return _exchange(at, at.clients, replies, from_hub=(at.clients.alive,))


def _exchange(
    at: ServerKeys, own: ClientKeys, replies: tuple[str, ...], *, from_hub: tuple[str, ...]
) -> Exchange:
    read = (own.no_session, *replies, at.status)
    return Exchange(
        {
            PUT: (own.observation,),
            QUERY: (own.service(ANY),),
            TOKEN: (own.alive,),
            SUBSCRIBE: read,
            **dict.fromkeys(WATCH, (at.alive, at.instance(ANY), *from_hub)),
        },
        {
            PUT: read,
            REPLY: (own.service(ANY),),
            TOKEN: (at.alive, at.instance(ANY)),
            SUBSCRIBE: (at.clients.observation,),
            SERVE: (at.clients.service(ANY),),
            **dict.fromkeys(WATCH, (at.clients.alive,)),
        },
    )


def _recorder(at: ServerKeys) -> Exchange:
    """Return what a recorder hears at a server or router; it sends nothing."""
    # it subscribes at each node with the same keys
    heard = ServerKeys(at.site, ANY_SERVER).clients.heard
    read = _operator(at)
    return Exchange(
        {**read.from_client, SUBSCRIBE: (at.status, *heard)},
        {**read.from_server, PUT: (at.status, *heard)},
    )


def _operator(at: ServerKeys) -> Exchange:
    """Return what an operator reads; it changes nothing."""
    alive = (at.alive, at.instance(ANY), at.clients.alive)
    return Exchange(
        {SUBSCRIBE: (at.status,), **dict.fromkeys(WATCH, alive)},
        {PUT: (at.status,), TOKEN: alive},
    )

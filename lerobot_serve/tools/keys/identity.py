# SPDX-License-Identifier: Apache-2.0
"""Who a key belongs to. Any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lerobot_serve.contract.names import file_name, is_topic
from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.keys import server_segment

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

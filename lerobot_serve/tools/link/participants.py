# SPDX-License-Identifier: Apache-2.0
"""Read who takes part in a link from its keys. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass
import re

from lerobot_serve.contract.names import KEY_ROOT, SEGMENT
from lerobot_serve.zenoh.keys import Role

ALIVE = 'alive'
CLIENT_KEY = re.compile(
    f'{KEY_ROOT}/(?P<site>{SEGMENT})/(?P<server>{SEGMENT})/'
    f'(?P<role>{"|".join(Role)})/(?P<client>{SEGMENT})/.+'
)
INSTANCE_KEY = re.compile(f'{KEY_ROOT}/{SEGMENT}/{SEGMENT}/instance/{SEGMENT}')
SERVER_KEY = re.compile(f'{KEY_ROOT}/(?P<site>{SEGMENT})/(?P<server>{SEGMENT})/.+')


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """A server or router, or with a `role` one of its clients; names as in keys."""

    site: str
    server: str
    role: str = ''
    client: str = ''

    @property
    def is_server(self) -> bool:
        return not self.role


def participant(key: str) -> Participant | None:
    """Return the owner of a key; None for a key of something else."""
    if match := CLIENT_KEY.fullmatch(key):
        return Participant(match['site'], match['server'], match['role'], match['client'])
    if match := SERVER_KEY.fullmatch(key):
        return Participant(match['site'], match['server'])
    return None


def is_instance(key: str) -> bool:
    """Return whether a key is the one of a process that is a server."""
    return bool(INSTANCE_KEY.fullmatch(key))


def is_token(key: str) -> bool:
    """Return whether a key is the one of a liveliness token."""
    return key.endswith(f'/{ALIVE}')

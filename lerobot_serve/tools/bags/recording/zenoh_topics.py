# SPDX-License-Identifier: Apache-2.0
"""The topic and type under which a bag holds what passes on a key of Zenoh. Pure; any thread."""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.contract.names import KEY_ROOT, ros_token
from lerobot_serve.tools.bags.message import PACKAGE
from lerobot_serve.tools.bags.service_events import TOPIC_END, TYPE_END
from lerobot_serve.zenoh.keys import Role

OBSERVATION, CHUNK = f'{PACKAGE}/msg/Observation', f'{PACKAGE}/msg/ActionChunk'
# services of sessions, and their types
SERVICES = {
    'open_session': 'OpenSession',
    'close_session': 'CloseSession',
    'reset_episode': 'ResetEpisode',
}


class RecordedKey(NamedTuple):
    """A topic as the same message over ROS 2 would have it, and its type."""

    topic: str
    kind: str


def selectors(site: str) -> tuple[str, ...]:
    """Return the keys of requests, replies and session calls, to subscribe to."""
    clients = f'{KEY_ROOT}/{site}/*/*/*'
    return (
        f'{clients}/observation',
        f'{clients}/no_session',
        *(f'{clients}/event/{service}' for service in SERVICES),
        f'{clients}/*/action_chunk',
        *(f'{clients}/{purpose}/*' for purpose in ('replies', 'shadow', 'second_draw')),
    )


def recorded_key(key: str) -> RecordedKey | None:
    """Return where the messages on a key belong; None for a key of something else."""
    _, _, server, role, client, *rest = key.split('/')
    node, sender = f'/{server.replace(".", "/")}', f'/{client.replace(".", "/")}'
    match rest:
        case ['observation']:
            return RecordedKey(f'{node}/observation', OBSERVATION)
        case ['event', service] if service in SERVICES:
            kind = f'{PACKAGE}/srv/{SERVICES[service]}{TYPE_END}'
            return RecordedKey(f'{node}/{service}{TOPIC_END}', kind)
        case ['no_session']:
            return RecordedKey(f'{node}/no_session', CHUNK)
        case [_, 'action_chunk'] if role == Role.ROBOT:
            return RecordedKey(f'/{ros_token(client)}/action_chunk', CHUNK)
        case ['replies', _]:
            return RecordedKey(f'{sender}/replies/{ros_token(server)}', CHUNK)
        case ['shadow' | 'second_draw' as purpose, _]:
            return RecordedKey(f'{sender}/replies/{purpose}', CHUNK)
    return None

# SPDX-License-Identifier: Apache-2.0
"""Records what passes over Zenoh into the bag of a recorder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import threading
import time
from typing import NamedTuple

from lerobot_serve.contract.names import KEY_ROOT, ros_token
from lerobot_serve.errors import UserError
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CHUNK,
    OBSERVATION,
    PACKAGE,
    TOPIC_END,
    TYPE_END,
)
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings

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


class ZenohRecording:
    """
    Built, begun and closed by the main thread. Threads of Zenoh call `add_topic` with topic and
    type before the first message of a topic, and `put`.
    """

    def __init__(self, settings: ZenohSettings) -> None:
        """Connect to each endpoint of `settings`. Raises UserError."""
        self._site = settings.site
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._links: list[ZenohLink] = []
        self._subscriptions: list[object] = []
        try:
            for endpoint in settings.connect:
                # a client sees all that passes one node, and a session of Zenoh connects to one
                link = ZenohLink(replace(settings, connect=(endpoint,), observes=True))
                self._links.append(link)
        except UserError:
            self.close()
            raise

    def begin(
        self, add_topic: Callable[[str, str], None], put: Callable[[BagMessage], None]
    ) -> None:
        """Record from now on."""
        self._add_topic, self._put = add_topic, put
        for link in self._links:
            self._subscriptions += [
                link.subscribe(key, self._on_message) for key in selectors(self._site)
            ]

    def _on_message(self, key: str, raw: bytes) -> None:
        recorded = recorded_key(key)
        if recorded is None:
            return
        with self._lock:
            if recorded.topic not in self._known:
                self._known.add(recorded.topic)
                self._add_topic(*recorded)
        now_ns = time.time_ns()
        self._put(BagMessage(*recorded, now_ns, raw, now_ns))

    def close(self) -> None:
        for link in self._links:
            link.close()

# SPDX-License-Identifier: Apache-2.0
"""
Replies over Zenoh: a publisher for each open session of a server, a subscription for each client.
"""

from __future__ import annotations

from collections.abc import Callable
import threading

import zenoh

from lerobot_serve.wire.names import is_reply_key
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import SessionRefused
from lerobot_serve.zenoh.keys import client_of, ClientKeys, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.traffic import Traffic


class ZenohReplyPublishers:
    """
    The replies of one server, with the methods of the ones over ROS 2; a reply topic is a key. The
    control thread opens and closes them; any thread sends and queries.
    """

    def __init__(self, link: ZenohLink, keys: ServerKeys) -> None:
        self._link, self._prefix = link, f'{keys.prefix}/'
        self._publishers: dict[str, zenoh.Publisher] = {}
        # prefixes of the clients whose tokens are there
        self._alive: set[str] = set()
        self._presence = link.watch_alive(keys.clients.alive, self._on_presence)
        # a publisher must not be undeclared while another thread puts into it
        self._lock = threading.Lock()

    def open(self, topic: str) -> None:
        """Publish on a key from now on. Raises SessionRefused for one of another server."""
        if not (is_reply_key(topic) and topic.startswith(self._prefix)):
            raise SessionRefused(
                Refusal.BAD_NAME,
                f'reply_topic must be a reply key below {self._prefix}, got {topic[:120]!r}',
            )
        with self._lock:
            if topic not in self._publishers:
                self._publishers[topic] = self._link.publisher(topic, Traffic.CHUNK)

    def send(self, topic: str, raw: bytes, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """
        Publish a chunk; return False without a session on this key. `is_wanted` is called under
        the lock: after `retain` has returned, no unwanted chunk is sent.
        """
        with self._lock:
            publisher = self._publishers.get(topic) if is_wanted() else None
            if publisher:
                publisher.put(raw)
        return publisher is not None

    def has_subscriber(self, topic: str) -> bool:
        """Return whether the client of a key lives; others may listen, too."""
        return topic in self._publishers and client_of(topic).prefix in self._alive

    def _on_presence(self, key: str, is_alive: bool) -> None:
        """Thread of Zenoh."""
        (self._alive.add if is_alive else self._alive.discard)(client_of(key).prefix)

    def retain(self, topics: set[str]) -> None:
        """Close all others."""
        with self._lock:
            for topic in self._publishers.keys() - topics:
                self._publishers.pop(topic).undeclare()

    def close(self) -> None:
        """Stop to watch clients."""
        self._presence.undeclare()


class ZenohReplies:
    """
    The replies to one client from its servers. A thread of Zenoh calls `on_chunk`,
    `on_no_session` and, when a server comes or goes, `on_presence`.
    """

    def __init__(
        self,
        link: ZenohLink,
        keys: dict[str, ClientKeys],
        *,
        on_chunk: Callable[[bytes], None],
        on_no_session: Callable[[bytes], None],
    ) -> None:
        """`keys` has the keys of this client at each server."""
        self._keys = keys
        self._subscriptions = [
            subscription
            for each in keys.values()
            for subscription in (
                link.subscribe(each.replies(), lambda _, raw: on_chunk(raw)),
                link.subscribe(each.no_session, lambda _, raw: on_no_session(raw)),
            )
        ]

    def topic(self, server: str, session_epoch: int) -> str:
        """Return the key on which a server replies in one session."""
        return self._keys[server].reply(session_epoch)

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.undeclare()
        self._subscriptions.clear()

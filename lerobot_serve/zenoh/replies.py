# SPDX-License-Identifier: Apache-2.0
"""Replies over Zenoh: a publisher for each open session of a server."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time

import zenoh

from lerobot_serve.contract.names import is_reply_key
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.zenoh.keys import client_of, ServerKeys
from lerobot_serve.zenoh.link import DROPPED_AFTER_S, is_matched, ZenohLink
from lerobot_serve.zenoh.link_sender import LinkSender
from lerobot_serve.zenoh.settings import Traffic

# clients whose tokens are held; without keys anything may have one
CLIENTS_LIMIT = 4096


class ReplyPublisher:
    """
    Publishes the chunks of one session; any thread. Once a chunk has found the link full, it and
    those after it go through a LinkSender until the link is free: a client that is cut off holds
    up the caller, which serves all clients, for DROPPED_AFTER_S once.
    """

    def __init__(self, link: ZenohLink, key: str, on_drop: Callable[[str], None]) -> None:
        self._link, self._key, self._on_drop = link, key, on_drop
        self._publisher = link.publisher(key, Traffic.CHUNK)
        self._sender: LinkSender | None = None
        self._late: zenoh.Publisher | None = None
        self._is_closed = False
        # a publisher must not be undeclared while another thread puts into it
        self._lock = threading.Lock()

    def send(self, raw: bytes, is_wanted: Callable[[], bool], *, is_alive: bool) -> bool:
        """
        Publish; return False for a chunk that is not wanted, without a client, and after `close`.
        `is_alive` is whether the client has a token.
        """
        with self._lock:
            if self._is_closed or not is_wanted():
                return False
            if not (is_alive or is_matched(self._publisher)):
                return False
            if self._sender and not self._sender.is_idle:
                self._sender.send(raw)
                return True
            begin_s = time.monotonic()
            self._publisher.put(raw)
            if time.monotonic() - begin_s >= DROPPED_AFTER_S:
                # a client ignores a second copy, if it got the first
                self._late_sender().send(raw)
        return True

    def _late_sender(self) -> LinkSender:
        if self._sender is None:
            self._late = self._link.publisher(self._key, Traffic.LATE_CHUNK)
            self._sender = LinkSender(self._late.put, self._on_drop, limit=1)
        return self._sender

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._publisher.undeclare()
            if self._sender and self._late:
                self._sender.close(self._late.undeclare)


class ZenohReplyPublishers:
    """
    The replies of one server, with the methods of the ones over ROS 2; a reply topic is a key. The
    control thread opens and closes them; any thread sends and queries.
    """

    def __init__(self, link: ZenohLink, keys: ServerKeys) -> None:
        self._link, self._prefix = link, f'{keys.prefix}/'
        self._publishers: dict[str, ReplyPublisher] = {}
        # gets the reason of a chunk that is dropped
        self.on_drop: Callable[[str], None] = lambda _: None
        # prefixes of the clients whose tokens are there
        self._alive: set[str] = set()
        self._presence = link.watch_alive(keys.clients.alive, self._on_presence)
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
                self._publishers[topic] = ReplyPublisher(self._link, topic, self._drop)

    def _drop(self, reason: str) -> None:
        self.on_drop(reason)

    def send(self, topic: str, raw: bytes, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """
        Publish a chunk; return False without a session on this key, and when its client is gone.
        `is_wanted` is called under the lock of the topic: after `retain` has returned, no unwanted
        chunk is sent.
        """
        publisher = self._publishers.get(topic)
        if publisher is None:
            return False
        return publisher.send(raw, is_wanted, is_alive=self.has_subscriber(topic))

    def has_subscriber(self, topic: str) -> bool:
        """Return whether the client of a key lives; others may listen, too."""
        return topic in self._publishers and client_of(topic).prefix in self._alive

    def _on_presence(self, key: str, is_alive: bool) -> None:
        """Thread of Zenoh."""
        if is_alive and len(self._alive) >= CLIENTS_LIMIT:
            self._drop('too_many_clients')
            return
        (self._alive.add if is_alive else self._alive.discard)(client_of(key).prefix)

    def retain(self, topics: set[str]) -> None:
        """Close all others."""
        with self._lock:
            closing = [self._publishers.pop(topic) for topic in self._publishers.keys() - topics]
        for publisher in closing:
            publisher.close()

    def close(self) -> None:
        """Stop to watch clients."""
        self._presence.undeclare()

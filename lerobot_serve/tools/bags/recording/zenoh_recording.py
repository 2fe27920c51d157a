# SPDX-License-Identifier: Apache-2.0
"""Records what passes over Zenoh into the bag of a recorder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import threading
import time

from lerobot_serve.errors import UserError
from lerobot_serve.tools.bags.recording.write_queue import ReceivedMessage
from lerobot_serve.tools.bags.recording.zenoh_topics import recorded_key, selectors
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings


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
        self, add_topic: Callable[[str, str], None], put: Callable[[ReceivedMessage], None]
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
        self._put(ReceivedMessage(recorded.topic, raw, now_ns, now_ns))

    def close(self) -> None:
        for link in self._links:
            link.close()

# SPDX-License-Identifier: Apache-2.0
"""
Requests and replies of robots over Zenoh, while the view of a robot is open.

The link is opened with the first viewer and closed with the last: what passes it costs bandwidth.
Threads of Zenoh deposit; the thread `robots` opens, polls and closes.
"""

from __future__ import annotations

from collections import deque
import threading
import time

from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.names import node_name
from lerobot_serve.errors import UserError
from lerobot_serve.tools.bags.message import BagMessage, TOPIC_END
from lerobot_serve.tools.bags.zenoh_recording import ZenohRecording
from lerobot_serve.tools.dashboard.robot_messages import RobotMessages
from lerobot_serve.zenoh.settings import ZenohSettings

KEPT_EVENTS, KEPT_CHUNKS, RETRY_S = 256, 64, 10.0


class ZenohFeed:
    """See the module."""

    def __init__(self, settings: ZenohSettings) -> None:
        self._settings = settings
        self._recording: ZenohRecording | None = None
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[RobotMessages, str, str]] = {}
        self._chunks: deque[tuple[str, bytes]] = deque(maxlen=KEPT_CHUNKS)
        self._events: deque[bytes] = deque(maxlen=KEPT_EVENTS)
        self._retry_s = 0.0

    def poll(self, messages: RobotMessages, client_id: str, server: str, now_ms: int) -> None:
        """
        Take what arrived of a robot. Its server does not show the link: that of a robot whose
        `link` is zenoh has no prefix.
        """
        if not server:
            self.remove(messages)
            return
        with self._lock:
            self._watched[id(messages)] = messages, client_id, node_name(server)
        if refusal := self._open():
            messages.note(now_ms, 'link', refusal)
        with self._lock:
            chunks = [raw for name, raw in self._chunks if name == client_id]
            others = [each for each in self._chunks if each[0] != client_id]
            self._chunks.clear()
            self._chunks.extend(others)
            events = list(self._events)
        for raw in chunks:
            messages.on_chunk(raw, client_id, now_ms)
        for raw in events:
            messages.on_session(raw, client_id)

    def remove(self, messages: RobotMessages) -> None:
        """Note that the view of a robot is closed; with the last one, close the link."""
        with self._lock:
            self._watched.pop(id(messages), None)
            is_over = not self._watched
        if is_over and self._recording:
            self._recording.close()
            self._recording = None

    def _open(self) -> str:
        """Open the link if it is due; return why it does not open, empty if it is open."""
        now_s = time.monotonic()
        if self._recording or now_s < self._retry_s:
            return ''
        self._retry_s = now_s + RETRY_S
        try:
            self._recording = ZenohRecording(self._settings)
        except UserError as error:
            return str(error)
        self._recording.begin(lambda topic, kind: None, self._on_message)
        return ''

    def _on_message(self, message: BagMessage) -> None:
        """Keep what belongs to a robot whose view is open. Threads of Zenoh."""
        topic, raw = message.topic, message.data
        if topic.endswith(TOPIC_END):
            with self._lock:
                self._events.append(raw)
            return
        try:
            name = read_envelope(raw).client_id
        except Malformed:
            return
        with self._lock:
            watched = [each for each in self._watched.values() if each[1] == name]
            if watched and topic.endswith('/action_chunk'):
                self._chunks.append((name, raw))
        for messages, _, server in watched:
            # a router forwards a request to a server, which is heard of, too
            if topic == f'{server}/observation':
                messages.on_request(raw)

# SPDX-License-Identifier: Apache-2.0
"""Records into one bag, which has its name from the begin. The writing thread."""

from __future__ import annotations

from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.recording.metadata import BagTopic
from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.recorder.robots.known_robots import KnownRobots


class ContinuousWriter:
    """A MessageWriter that passes the messages of the wanted robots to a bag."""

    def __init__(self, bag: BagWriter, robots: KnownRobots) -> None:
        self.bag, self._robots = bag, robots
        self._types: dict[str, str] = {}
        self.counts = bag.contents.counts

    @property
    def destination(self) -> str:
        return self.bag.destination

    @property
    def size_bytes(self) -> int:
        return self.bag.size_bytes

    def add_topic(self, topic: BagTopic) -> None:
        self._types[topic.name] = topic.type
        self.bag.add_topic(topic)

    def write(self, topic: str, data: bytes, *, received_ns: int, sent_ns: int) -> None:
        message = BagMessage(topic, self._types[topic], received_ns, data)
        self._robots.learn(message)
        if self._robots.wants(self._robots.owners(message)):
            self.bag.write(topic, data, received_ns=received_ns, sent_ns=sent_ns)

    def flush(self) -> None:
        self.bag.flush()

    def close(self) -> None:
        self.bag.close()

    def abort(self) -> None:
        self.bag.abort()

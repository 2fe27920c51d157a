# SPDX-License-Identifier: Apache-2.0
"""Bags made for tests, without ROS."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
import sqlite3

from lerobot_serve.contract import codec
from lerobot_serve.contract.cdr import CdrWriter
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.tools.bags.message import (
    BagMessage,
    BYTE,
    REQUEST_RECEIVED,
    STAMP_AND_CALLER,
    UINT64,
)
from lerobot_serve.tools.bags.metadata import BagTopic
from lerobot_serve.tools.bags.writer import BagWriter

TEXT = 'std_msgs/msg/String'


def begin(folder: Path, messages: Iterable[BagMessage], *, every: int = 1) -> BagWriter:
    """Return a bag in the making that is flushed behind each `every` messages."""
    writer = BagWriter(folder, distro='jazzy')
    for number, message in enumerate(messages, 1):
        writer.add_topic(BagTopic(message.topic, message.type, 'ros2msg', 'string data\n'))
        writer.write(message._replace(sent_ns=message.stamp_ns))
        if number % every == 0:
            writer.flush()
    return writer


def write(folder: Path, messages: Iterable[BagMessage], *, every: int = 1) -> Path:
    """Write a whole bag; return its folder."""
    begin(folder, messages, every=every).close()
    return folder


def texts(count: int, topic: str = '/a', begin_ns: int = 1000) -> list[BagMessage]:
    """Return messages that differ."""
    return [
        BagMessage(
            topic,
            TEXT,
            begin_ns + i,
            b'\x00\x01\x00\x00' + b'%d' % i * (i % 7 + 1),
            begin_ns + i,
        )
        for i in range(count)
    ]


def open_session_event(request: OpenSessionRequest) -> bytes:
    """Return the service event of a request."""
    writer = CdrWriter()
    writer.pack(BYTE, REQUEST_RECEIVED, align=1)
    writer.pack(STAMP_AND_CALLER, 0, 0, bytes(16), align=4)
    writer.pack(UINT64, 0, align=8)
    writer.count(1, 1, 'request')
    codec.write(writer, request)
    return writer.finish()


def write_sqlite(file: Path, messages: Iterable[BagMessage]) -> Path:
    """Write the older storage of rosbag2, as far as a reader needs it."""
    database = sqlite3.connect(file)
    database.executescript("""
        CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL,
            serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL,
            type_description_hash TEXT NOT NULL);
        CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL,
            timestamp INTEGER NOT NULL, data BLOB NOT NULL);
        CREATE INDEX timestamp_idx ON messages (timestamp ASC);
    """)
    topics: dict[str, int] = {}
    for message in messages:
        if message.topic not in topics:
            topics[message.topic] = len(topics) + 1
            database.execute(
                "INSERT INTO topics VALUES (?, ?, ?, 'cdr', '', '')",
                (topics[message.topic], message.topic, message.type),
            )
        database.execute(
            'INSERT INTO messages(topic_id, timestamp, data) VALUES (?, ?, ?)',
            (topics[message.topic], message.stamp_ns, message.data),
        )
    database.commit()
    database.close()
    return file

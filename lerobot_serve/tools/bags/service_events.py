# SPDX-License-Identifier: Apache-2.0
"""
Reads service events, the recorded requests of services. A replay needs fields of OpenSession that
requests do not repeat.

Plain; any thread.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lerobot_serve.cage import limits_encoding
from lerobot_serve.tools.bags.message import BagMessage, PACKAGE
from lerobot_serve.wire.cdr import CdrReader
from lerobot_serve.wire.message_parts import find_extension
from lerobot_serve.wire.schema import FINGERPRINT_LIMIT, ID_LIMIT, TASK_LIMIT

TOPIC_END, TYPE_END = '/_service_event', '_Event'
OPEN_SESSION = f'{PACKAGE}/srv/OpenSession{TYPE_END}'

# event type of a request received by the service
REQUEST_RECEIVED = 1
BYTE, UINT16, UINT32, UINT64 = (struct.Struct(f'<{code}') for code in 'BHIQ')
# stamp of two numbers, and the 16 bytes of the client gid
FLOAT32 = struct.Struct('<f')
STAMP_AND_CALLER = struct.Struct('<iI16s')
SIZE = struct.Struct('<IIB')
REPLY_TOPIC_LIMIT = 256
NAMES_LIMIT = CAMERAS_LIMIT = 4096
TAGS_LIMIT, TAG_LIMIT = 4096, 1 << 16

Key = tuple[str, int]


def is_service_event(topic: str, kind: str) -> bool:
    """Return whether a topic carries service events, by its names."""
    return topic.endswith(TOPIC_END) and kind.endswith(TYPE_END)


class SessionTerms(NamedTuple):
    """The fields of OpenSession that a reply depends on."""

    robot_type: str
    task: str
    rtc_execution_horizon: int


class ValueNames(NamedTuple):
    """The rate of a robot, and the names of the values in its requests and chunks."""

    fps: float
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]


class OpenedSession(NamedTuple):
    """A request to OpenSession; `limits` are those of the robot's cage, empty without them."""

    key: Key
    terms: SessionTerms
    names: ValueNames
    limits: bytes = b''


class SessionIndex:
    """The sessions of a bag, of any server or router; the last request counts."""

    def __init__(self) -> None:
        self._terms: dict[Key, SessionTerms] = {}

    def add(self, message: BagMessage) -> None:
        """Add a message of any type. Raises Malformed."""
        if message.type == OPEN_SESSION:
            opened = read_open_session(message.data)
            if opened:
                self._terms[opened.key] = opened.terms

    def find(self, client_id: str, session_epoch: int) -> SessionTerms | None:
        return self._terms.get((client_id, session_epoch))


def read_open_session(raw: bytes) -> OpenedSession | None:
    """Return the session from a request to OpenSession, None from a reply. Raises Malformed."""
    reader = CdrReader(raw)
    (event,) = reader.unpack(BYTE, align=1)
    reader.unpack(STAMP_AND_CALLER, align=4)
    reader.unpack(UINT64, align=8)
    if event != REQUEST_RECEIVED or not reader.count(1, 'request'):
        return None
    reader.unpack(UINT16, align=2)
    client_id = reader.string(ID_LIMIT, 'client_id')
    reader.unpack(UINT64, align=8)
    (session_epoch,) = reader.unpack(UINT32, align=4)
    reader.skip_string(REPLY_TOPIC_LIMIT, 'reply_topic')
    robot_type = reader.string(ID_LIMIT, 'robot_type')
    reader.skip_string(FINGERPRINT_LIMIT, 'policy')
    (fps,) = reader.unpack(FLOAT32, align=4)
    state_names, action_names = (_names(reader, what) for what in ('state', 'action'))
    for _ in range(reader.count(CAMERAS_LIMIT, 'cameras')):
        reader.skip_string(ID_LIMIT, 'cameras')
        reader.unpack(SIZE, align=4)
    task = reader.string(TASK_LIMIT, 'task')
    reader.unpack(BYTE, align=1)
    (horizon,) = reader.unpack(UINT32, align=4)
    reader.unpack(BYTE, align=1)
    reader.unpack(FLOAT32, align=4)
    for _ in range(2 * reader.count(TAGS_LIMIT, 'tags')):
        reader.skip_string(TAG_LIMIT, 'tags')
    limits = find_extension(reader, limits_encoding.EXTENSION_KEY)
    return OpenedSession(
        (client_id, session_epoch),
        SessionTerms(robot_type, task, horizon),
        ValueNames(fps, state_names, action_names),
        b'' if limits is None else bytes(limits),
    )


def _names(reader: CdrReader, what: str) -> tuple[str, ...]:
    count = reader.count(NAMES_LIMIT, f'{what}_names')
    return tuple(reader.string(ID_LIMIT, f'{what} name') for _ in range(count))

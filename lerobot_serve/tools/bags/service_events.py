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
from lerobot_serve.contract.cdr import CdrReader
from lerobot_serve.contract.codec import read
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.tools.bags.message import BagMessage, PACKAGE

TOPIC_END, TYPE_END = '/_service_event', '_Event'
OPEN_SESSION = f'{PACKAGE}/srv/OpenSession{TYPE_END}'

# event type of a request received by the service
REQUEST_RECEIVED = 1
BYTE, UINT64 = struct.Struct('<B'), struct.Struct('<Q')
# stamp of two numbers, and the 16 bytes of the client gid
STAMP_AND_CALLER = struct.Struct('<iI16s')

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
    request = read(reader, OpenSessionRequest)
    limits = {each.key: bytes(each.value) for each in request.extensions}
    return OpenedSession(
        (request.client_id, request.session_epoch),
        SessionTerms(request.robot_type, request.task, request.rtc_execution_horizon),
        ValueNames(request.fps, request.state_names, request.action_names),
        limits.get(limits_encoding.EXTENSION_KEY, b''),
    )

# SPDX-License-Identifier: Apache-2.0
"""
Reads service events, the recorded requests of services. A replay needs fields of OpenSession that
requests do not repeat.

Plain; any thread.
"""

from __future__ import annotations

import struct

from lerobot_serve.contract.cdr import CdrReader
from lerobot_serve.contract.codec import read
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.tools.bags.message import PACKAGE

TOPIC_END, TYPE_END = '/_service_event', '_Event'
OPEN_SESSION = f'{PACKAGE}/srv/OpenSession{TYPE_END}'

# event type of a request received by the service
REQUEST_RECEIVED = 1
BYTE, UINT64 = struct.Struct('<B'), struct.Struct('<Q')
# stamp of two numbers, and the 16 bytes of the client gid
STAMP_AND_CALLER = struct.Struct('<iI16s')


def is_service_event(topic: str, kind: str) -> bool:
    """Return whether a topic carries service events, by its names."""
    return topic.endswith(TOPIC_END) and kind.endswith(TYPE_END)


def read_open_session(raw: bytes) -> OpenSessionRequest | None:
    """Return the request of an event of OpenSession; None for a reply. Raises Malformed."""
    reader = CdrReader(raw)
    (event,) = reader.unpack(BYTE, align=1)
    reader.unpack(STAMP_AND_CALLER, align=4)
    reader.unpack(UINT64, align=8)
    if event != REQUEST_RECEIVED or not reader.count(1, 'request'):
        return None
    return read(reader, OpenSessionRequest)

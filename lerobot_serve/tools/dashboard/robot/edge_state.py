# SPDX-License-Identifier: Apache-2.0
"""
Read the bytes of EdgeState: hundreds of robots publish five times a second, and rclpy would build
an object of 24 fields for each.

The texts and states of a robot seldom change: their bytes are compared with those of its last
message, and then only the numbers behind them are read. While texts, states and counts stay, each
sample has the same view.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from msgspec.structs import replace

from lerobot_serve.contract.cdr import CdrReader, START
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.limits import (
    FINGERPRINT_LIMIT,
    ID_LIMIT,
    SLOT_LIMIT,
    TASK_LIMIT,
    TEXT_LIMIT,
)
from lerobot_serve.contract.records import EdgeState
from lerobot_serve.tools.operate.fleet_state import RobotView

# between the stamp and the codes
TEXTS = {
    'client_id': ID_LIMIT,
    'server': FINGERPRINT_LIMIT,
    'episode_id': ID_LIMIT,
    'task': TASK_LIMIT,
    'slot': SLOT_LIMIT,
    'policy': FINGERPRINT_LIMIT,
}
STAMP, CODES = struct.Struct('<iI'), struct.Struct('<BBBB')
TEXTS_AT = START + STAMP.size
# queue, age, round trip, network; 4 bytes of padding where the counters are aligned to 8
MEASURED, COUNTED = struct.Struct('<ffff'), struct.Struct('<QQQQQQQ')
STALLS, CAGE_TRIPS = 5, 6
LITTLE = b'\x00\x01'


class EdgeSample(NamedTuple):
    """
    One EdgeState. The view is the same object as before unless texts, states or counts changed; it
    has no numbers that change with each message.
    """

    robot: RobotView
    queue_s: float = 0.0
    action_age_s: float = 0.0
    round_trip_ms: float = 0.0
    network_ms: float = 0.0


class EdgeStateReader:
    """Reads the states of one robot; one thread."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._texts, self._robot = b'', RobotView(node)
        self._measured_at = self._counted_at = 0

    def read(self, raw: bytes) -> EdgeSample:
        """Return the state. Raises Malformed."""
        if not self._texts or not raw.startswith(self._texts, TEXTS_AT) or raw[:2] != LITTLE:
            self._read_texts(raw)
        try:
            measured = MEASURED.unpack_from(raw, self._measured_at)
            counts = COUNTED.unpack_from(raw, self._counted_at)
        except struct.error:
            raise Malformed('truncated', 'the state ends within its numbers') from None
        edge, stalls, trips = self._robot.edge, counts[STALLS], counts[CAGE_TRIPS]
        if (stalls, trips) != (edge.stalls, edge.cage_trips):
            self._robot = RobotView(self._node, replace(edge, stalls=stalls, cage_trips=trips))
        return EdgeSample(self._robot, *measured)

    def _read_texts(self, raw: bytes) -> None:
        """Read all that stands before the numbers. Raises Malformed."""
        self._texts = b''
        reader = CdrReader(raw)
        reader.unpack(STAMP, align=4)
        texts: dict[str, Any] = {n: reader.string(limit, n) for n, limit in TEXTS.items()}
        state, rung, paused, intervention = reader.unpack(CODES, align=1)
        reason = reader.string(TEXT_LIMIT, 'reason')
        end = reader.position
        edge = EdgeState(
            state=EdgeState.State.of(state),
            rung=EdgeState.Rung.of(rung),
            paused=bool(paused),
            intervention=EdgeState.Intervention.of(intervention),
            reason=reason,
            **texts,
        )
        self._robot = RobotView(self._node, edge)
        self._measured_at = _aligned(end, 4)
        self._counted_at = _aligned(self._measured_at + MEASURED.size, 8)
        self._texts = bytes(raw[TEXTS_AT:end])


def _aligned(at: int, size: int) -> int:
    """Return the next position at a multiple of `size`, counted behind the encapsulation."""
    return at + -(at - START) % size

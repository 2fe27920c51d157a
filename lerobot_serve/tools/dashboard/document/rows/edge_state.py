# SPDX-License-Identifier: Apache-2.0
"""
Read the bytes of EdgeState: hundreds of robots publish five times a second, and rclpy would build
an object of 24 fields for each.

The texts and states of a robot seldom change: their bytes are compared with those of its last
message, and then only the numbers behind them are read. While texts, states and counts stay, each
sample has the same view.
"""

from __future__ import annotations

from dataclasses import replace
import struct
from typing import NamedTuple

from lerobot_serve.tools.operate.fleet_state import RobotView, unknown_name
from lerobot_serve.tools.operate.message_views import (
    EDGE_NAMES,
    INTERVENTION_NAMES,
    RUNG_NAMES,
)
from lerobot_serve.wire.cdr import CdrReader, START
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.schema import (
    FINGERPRINT_LIMIT,
    ID_LIMIT,
    SLOT_LIMIT,
    TASK_LIMIT,
    TEXT_LIMIT,
)

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
        robot = self._robot
        if counts[STALLS] != robot.stalls or counts[CAGE_TRIPS] != robot.cage_trips:
            self._robot = robot = replace(
                robot, stalls=counts[STALLS], cage_trips=counts[CAGE_TRIPS]
            )
        return EdgeSample(robot, *measured)

    def _read_texts(self, raw: bytes) -> None:
        """Read all that stands before the numbers. Raises Malformed."""
        self._texts = b''
        reader = CdrReader(raw)
        reader.unpack(STAMP, align=4)
        client_id = reader.string(ID_LIMIT, 'client_id')
        server = reader.string(FINGERPRINT_LIMIT, 'server')
        episode_id = reader.string(ID_LIMIT, 'episode_id')
        task = reader.string(TASK_LIMIT, 'task')
        slot = reader.string(SLOT_LIMIT, 'slot')
        policy = reader.string(FINGERPRINT_LIMIT, 'policy')
        state, rung, paused, intervention = reader.unpack(CODES, align=1)
        reason = reader.string(TEXT_LIMIT, 'reason')
        end = reader.position
        self._robot = RobotView(
            node=self._node,
            client_id=client_id,
            state=EDGE_NAMES.get(state, unknown_name(state)),
            rung=RUNG_NAMES.get(rung, unknown_name(rung)),
            paused=bool(paused),
            intervention=INTERVENTION_NAMES.get(intervention, unknown_name(intervention)),
            reason=reason,
            server=server,
            slot=slot,
            policy=policy,
            episode_id=episode_id,
            task=task,
        )
        self._measured_at = _aligned(end, 4)
        self._counted_at = _aligned(self._measured_at + MEASURED.size, 8)
        self._texts = bytes(raw[TEXTS_AT:end])


def _aligned(at: int, size: int) -> int:
    """Return the next position at a multiple of `size`, counted behind the encapsulation."""
    return at + -(at - START) % size

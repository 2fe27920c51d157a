# SPDX-License-Identifier: Apache-2.0
"""
ExecutedAction, EdgeState and RoutingDecision from their CDR bytes, as far as the audit needs them.
Pure functions; any thread. Each raises Malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
import struct

import numpy as np

from lerobot_serve.tools.bags.message import INTERFACES
from lerobot_serve.wire.cdr import CdrReader
from lerobot_serve.wire.message_parts import ACTION_VALUES_LIMIT
from lerobot_serve.wire.schema import (
    FINGERPRINT_LIMIT,
    ID_LIMIT,
    SLOT_LIMIT,
    TASK_LIMIT,
    TEXT_LIMIT,
)

EXECUTED_TYPE = f'{INTERFACES}/ExecutedAction'
STATE_TYPE = f'{INTERFACES}/EdgeState'
DECISION_TYPE = f'{INTERFACES}/RoutingDecision'

VERDICTS = ('pass', 'clamped', 'held', 'stopped')
RUNGS = (
    *('policy', 'ramp', 'hold', 'repeat_last', 'zero', 'safe_pose', 'stop_service'),
    *('no_command', 'initial_pose'),
)
STATES = ('', 'connecting', 'streaming', 'degraded', 'stalled', 'reconnecting', 'dead')

# sec, nanosec, control_step, seq, session_epoch, episode, chunk_row, age_s, verdict, rung
EXECUTED_HEAD = struct.Struct('<iIQQIIIfBB')
STAMP = struct.Struct('<iI')
FLAGS = struct.Struct('<BBB')
PLACE = struct.Struct('<BB')
REASON_LIMIT, SERVER_LIMIT, KEY_LIMIT = 256, 256, 160


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedAction:
    """ExecutedAction.msg without its stamp."""

    control_step: int
    seq: int
    session_epoch: int
    episode: int
    chunk_row: int
    age_s: float
    cage_result: str
    rung: str
    client_id: str
    episode_id: str
    slot: str
    policy: str
    reason: str
    raw: np.ndarray
    commanded: np.ndarray


@dataclass(frozen=True, slots=True)
class EdgeState:
    """The beginning of EdgeState.msg."""

    client_id: str
    episode_id: str
    state: str
    rung: str
    reason: str


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """RoutingDecision.msg without its stamp."""

    client_id: str
    episode_id: str
    routing_key: str
    bucket: int
    split_percent: int
    slot: str
    policy: str
    server: str
    missing_episode_id: bool
    sticky: bool
    moved: bool
    reason: str


def decode_executed(raw: bytes) -> ExecutedAction:
    reader = CdrReader(raw)
    _, _, *numbers, verdict, rung = reader.unpack(EXECUTED_HEAD, align=8)
    return ExecutedAction(
        *numbers,
        constant_name(VERDICTS, verdict),
        constant_name(RUNGS, rung),
        reader.string(ID_LIMIT, 'client_id'),
        reader.string(ID_LIMIT, 'episode_id'),
        reader.string(SLOT_LIMIT, 'slot'),
        reader.string(FINGERPRINT_LIMIT, 'policy'),
        reader.string(REASON_LIMIT, 'reason'),
        reader.floats(ACTION_VALUES_LIMIT, 'raw'),
        reader.floats(ACTION_VALUES_LIMIT, 'commanded'),
    )


def decode_state(raw: bytes) -> EdgeState:
    reader = CdrReader(raw)
    reader.unpack(STAMP, align=4)
    client_id = reader.string(ID_LIMIT, 'client_id')
    reader.skip_string(SERVER_LIMIT, 'server')
    episode_id = reader.string(ID_LIMIT, 'episode_id')
    reader.skip_string(TASK_LIMIT, 'task')
    reader.skip_string(SLOT_LIMIT, 'slot')
    reader.skip_string(FINGERPRINT_LIMIT, 'policy')
    number, rung, _ = reader.unpack(FLAGS, align=1)
    reason = reader.string(TEXT_LIMIT, 'reason')
    return EdgeState(
        client_id, episode_id, constant_name(STATES, number), constant_name(RUNGS, rung), reason
    )


def decode_decision(raw: bytes) -> RoutingDecision:
    reader = CdrReader(raw)
    reader.unpack(STAMP, align=4)
    ids = (
        reader.string(ID_LIMIT, 'client_id'),
        reader.string(ID_LIMIT, 'episode_id'),
        reader.string(KEY_LIMIT, 'routing_key'),
    )
    place = reader.unpack(PLACE, align=1)
    names = (
        reader.string(SLOT_LIMIT, 'slot'),
        reader.string(FINGERPRINT_LIMIT, 'policy'),
        reader.string(SERVER_LIMIT, 'server'),
    )
    flags = map(bool, reader.unpack(FLAGS, align=1))
    return RoutingDecision(*ids, *place, *names, *flags, reader.string(TEXT_LIMIT, 'reason'))


def constant_name(words: tuple[str, ...], number: int) -> str:
    """Return the name of a constant, also of one of later days."""
    return words[number] if number < len(words) else str(number)

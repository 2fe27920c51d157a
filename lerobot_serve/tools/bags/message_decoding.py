# SPDX-License-Identifier: Apache-2.0
"""
Decodes the fields of ExecutedAction, EdgeState and RoutingDecision that the audit needs, from CDR
bytes. Pure functions; any thread. Each raises Malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
import struct

from lerobot_serve.arrays import Float32Array
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

CAGE_RESULTS = ('pass', 'clamped', 'held', 'stopped')
RUNGS = (
    *('policy', 'ramp', 'hold', 'repeat_last', 'zero', 'safe_pose', 'stop_service'),
    *('no_command', 'initial_pose'),
)
STATES = ('', 'connecting', 'streaming', 'degraded', 'stalled', 'reconnecting', 'dead')

# sec, nanosec, control_step, seq, session_epoch, episode, chunk_row, age_s, cage_result, rung
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
    raw: Float32Array
    commanded: Float32Array


@dataclass(frozen=True, slots=True)
class EdgeState:
    """The first fields of EdgeState.msg."""

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
    _, _, *numbers, cage_result, rung = reader.unpack(EXECUTED_HEAD, align=8)
    control_step, seq, session_epoch, episode, chunk_row, age_s = numbers
    return ExecutedAction(
        control_step=control_step,
        seq=seq,
        session_epoch=session_epoch,
        episode=episode,
        chunk_row=chunk_row,
        age_s=age_s,
        cage_result=constant_name(CAGE_RESULTS, cage_result),
        rung=constant_name(RUNGS, rung),
        client_id=reader.string(ID_LIMIT, 'client_id'),
        episode_id=reader.string(ID_LIMIT, 'episode_id'),
        slot=reader.string(SLOT_LIMIT, 'slot'),
        policy=reader.string(FINGERPRINT_LIMIT, 'policy'),
        reason=reader.string(REASON_LIMIT, 'reason'),
        raw=reader.floats(ACTION_VALUES_LIMIT, 'raw'),
        commanded=reader.floats(ACTION_VALUES_LIMIT, 'commanded'),
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
    client_id = reader.string(ID_LIMIT, 'client_id')
    episode_id = reader.string(ID_LIMIT, 'episode_id')
    routing_key = reader.string(KEY_LIMIT, 'routing_key')
    bucket, split_percent = reader.unpack(PLACE, align=1)
    slot = reader.string(SLOT_LIMIT, 'slot')
    policy = reader.string(FINGERPRINT_LIMIT, 'policy')
    server = reader.string(SERVER_LIMIT, 'server')
    missing_episode_id, sticky, moved = reader.unpack(FLAGS, align=1)
    return RoutingDecision(
        client_id=client_id,
        episode_id=episode_id,
        routing_key=routing_key,
        bucket=bucket,
        split_percent=split_percent,
        slot=slot,
        policy=policy,
        server=server,
        missing_episode_id=bool(missing_episode_id),
        sticky=bool(sticky),
        moved=bool(moved),
        reason=reader.string(TEXT_LIMIT, 'reason'),
    )


def constant_name(names: tuple[str, ...], number: int) -> str:
    """Return the name of a constant, or its number if this version does not know it."""
    return names[number] if number < len(names) else str(number)

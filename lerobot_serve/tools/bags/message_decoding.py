# SPDX-License-Identifier: Apache-2.0
"""
Decodes ExecutedAction, EdgeState and RoutingDecision from CDR bytes. Pure functions; any thread.
Each raises Malformed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import struct

import numpy as np

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

SECOND_NS = 10**9
CAGE_RESULTS = ('pass', 'clamped', 'held', 'stopped')
RUNGS = (
    *('policy', 'ramp', 'hold', 'repeat_last', 'zero', 'safe_pose', 'stop_service'),
    *('no_command', 'initial_pose', 'person'),
)
SOURCES = ('policy', 'person', 'ladder', 'interlock', 'teardown', 'operator', 'none')
INTERVENTIONS = ('none', 'commanding', 'lost')
STATES = ('', 'connecting', 'streaming', 'degraded', 'stalled', 'reconnecting', 'dead')

# sec, nanosec, control_step, seq, session_epoch, episode, chunk_row, age_s, cage_result, rung,
# source
EXECUTED_HEAD = struct.Struct('<iIQQIIIfBBB')
STAMP = struct.Struct('<iI')
FLAGS = struct.Struct('<BBB')
# state, rung, paused, intervention
EDGE_FLAGS = struct.Struct('<BBBB')
PLACE = struct.Struct('<BB')
# queue_remaining_s, action_age_s, round_trip_ms, network_ms
EDGE_TIMES = struct.Struct('<ffff')
# control_steps, control_steps_missed, actions_executed, requests_sent, chunks_accepted, stalls,
# cage_trips
EDGE_COUNTS = struct.Struct('<7Q')
COUNT = VERSION = struct.Struct('<Q')
REASON_LIMIT, SERVER_LIMIT, KEY_LIMIT = 256, 256, 160
DROP_REASON_LIMIT, DROP_REASONS_LIMIT = 64, 1024
INPUTS_LIMIT = 1024
NO_VALUES = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedAction:
    """ExecutedAction.msg; `stamp_ns` is by the clock of the edge."""

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
    stamp_ns: int = 0
    source: str = 'policy'
    policy_action: Float32Array = field(default_factory=lambda: NO_VALUES)
    input_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EdgeState:
    """
    The fields of EdgeState.msg that are not counts of ordinary work; `stamp_ns` is by the clock of
    the edge.
    """

    client_id: str
    episode_id: str
    state: str
    rung: str
    reason: str
    server: str = ''
    task: str = ''
    paused: bool = False
    intervention: str = 'none'
    queue_remaining_s: float = 0.0
    round_trip_ms: float = 0.0
    network_ms: float = 0.0
    control_steps_missed: int = 0
    stalls: int = 0
    dropped: tuple[tuple[str, int], ...] = ()
    stamp_ns: int = 0


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
    split_version: int


def decode_executed(raw: bytes) -> ExecutedAction:
    reader = CdrReader(raw)
    sec, nanosec, *numbers, cage_result, rung, source = reader.unpack(EXECUTED_HEAD, align=8)
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
        policy_action=reader.floats(ACTION_VALUES_LIMIT, 'policy_action'),
        input_ids=reader.int64s(INPUTS_LIMIT, 'input_ids'),
        source=constant_name(SOURCES, source),
        stamp_ns=sec * SECOND_NS + nanosec,
    )


def decode_state(raw: bytes) -> EdgeState:
    reader = CdrReader(raw)
    stamp_ns = read_stamp(reader)
    client_id = reader.string(ID_LIMIT, 'client_id')
    server = reader.string(SERVER_LIMIT, 'server')
    episode_id = reader.string(ID_LIMIT, 'episode_id')
    task = reader.string(TASK_LIMIT, 'task')
    reader.skip_string(SLOT_LIMIT, 'slot')
    reader.skip_string(FINGERPRINT_LIMIT, 'policy')
    number, rung, paused, intervention = reader.unpack(EDGE_FLAGS, align=1)
    reason = reader.string(TEXT_LIMIT, 'reason')
    queue_remaining_s, _, round_trip_ms, network_ms = reader.unpack(EDGE_TIMES, align=4)
    _, missed, _, _, _, stalls, _ = reader.unpack(EDGE_COUNTS, align=8)
    return EdgeState(
        client_id,
        episode_id,
        constant_name(STATES, number),
        constant_name(RUNGS, rung),
        reason,
        server=server,
        task=task,
        paused=bool(paused),
        intervention=constant_name(INTERVENTIONS, intervention),
        queue_remaining_s=queue_remaining_s,
        round_trip_ms=round_trip_ms,
        network_ms=network_ms,
        control_steps_missed=missed,
        stalls=stalls,
        dropped=read_drops(reader),
        stamp_ns=stamp_ns,
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
        # bags of 0.2.0 have none
        split_version=0 if reader.is_at_end else int(reader.unpack(VERSION, align=8)[0]),
    )


def read_stamp(reader: CdrReader) -> int:
    """Return a builtin_interfaces/Time [ns]."""
    sec, nanosec = reader.unpack(STAMP, align=4)
    return int(sec) * SECOND_NS + int(nanosec)


def read_drops(reader: CdrReader) -> tuple[tuple[str, int], ...]:
    """Return the reasons and counts of a sequence of DropCount."""
    return tuple(
        (reader.string(DROP_REASON_LIMIT, 'drop reason'), int(reader.unpack(COUNT, align=8)[0]))
        for _ in range(reader.count(DROP_REASONS_LIMIT, 'dropped'))
    )


def constant_name(names: tuple[str, ...], number: int) -> str:
    """Return the name of a constant, or its number if this version does not know it."""
    return names[number] if number < len(names) else str(number)

# SPDX-License-Identifier: Apache-2.0
"""
Decodes the messages of servers, routers and judges from CDR bytes: ServerStatus, RouterState,
CanaryState, ShadowDivergence and EpisodeOutcome. Pure functions; any thread. Each raises
Malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
import struct

from lerobot_serve.tools.bags.message import INTERFACES
from lerobot_serve.tools.bags.message_decoding import (
    constant_name,
    COUNT,
    read_drops,
    read_stamp,
    SERVER_LIMIT,
)
from lerobot_serve.wire.cdr import CdrReader
from lerobot_serve.wire.schema import FINGERPRINT_LIMIT, ID_LIMIT, SLOT_LIMIT, TEXT_LIMIT

STATUS_TYPE = f'{INTERFACES}/ServerStatus'
ROUTER_TYPE = f'{INTERFACES}/RouterState'
CANARY_TYPE = f'{INTERFACES}/CanaryState'
DIVERGENCE_TYPE = f'{INTERFACES}/ShadowDivergence'
OUTCOME_TYPE = f'{INTERFACES}/EpisodeOutcome'

SERVER_STATES = ('', 'unconfigured', 'inactive', 'active', 'draining', 'failed')
SLOT_STATES = (*('', 'healthy', 'drained', 'probing', 'unavailable', 'barred', 'unqualified'),)
CANARY_STATES = (*('off', 'waiting', 'running', 'undecided', 'paused', 'promoted', 'rolled_back'),)
OUTCOMES = ('', 'success', 'failure', 'aborted')

BYTE = struct.Struct('<B')
# state, state_class, warmed_up
STATUS_FLAGS = struct.Struct('<BBB')
# active_sessions, max_sessions, load, inference_ms_p50, inference_ms_p99, queue_wait_ms_p99
STATUS_NUMBERS = struct.Struct('<IIffff')
# step, step_count
STEPS = struct.Struct('<II')
REMAINING = struct.Struct('<i')
# four outcomes, evidence not worse and worse, step_elapsed_s
EVIDENCE = struct.Struct('<QQQQddd')
UINT32, UINT64, FLOAT32 = (struct.Struct(f'<{code}') for code in 'IQf')
# rows, divergence, divergence_in_spreads
DIVERGENCE = struct.Struct('<Iff')
SCORE = struct.Struct('<ff')
# episodes, requests, chunks, requests_failed, episodes_moved_away, and four outcomes
SLOT_COUNTS = struct.Struct('<9Q')
# sessions, load, latency_ms_p50, latency_ms_p95
REPLICA_NUMBERS = struct.Struct('<Ifff')
REPLICA_COUNTS = struct.Struct('<5Q')
TYPE_LIMIT, DEVICE_LIMIT, HEALTH_LIMIT = 64, 32, 32
SLOTS_LIMIT, REPLICAS_LIMIT = 16, 4096


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """ServerStatus.msg without its counts; `stamp_ns` is by the clock of the server."""

    stamp_ns: int
    server: str
    slot: str
    policy: str
    state: str
    text: str
    load: float
    inference_ms_p50: float
    inference_ms_p99: float


@dataclass(frozen=True, slots=True)
class SlotState:
    """The fields of SlotState.msg before its counts."""

    slot: str
    policy: str
    state: str
    text: str
    share_percent: int


@dataclass(frozen=True, slots=True)
class RouterState:
    """RouterState.msg; `stamp_ns` is by the clock of the router."""

    stamp_ns: int
    server: str
    health: str
    text: str
    split_percent: int
    sessions: int
    slots: tuple[SlotState, ...]
    hedges: int
    dropped: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CanaryState:
    """CanaryState.msg without its counts of outcomes; `stamp_ns` is by the clock of the router."""

    stamp_ns: int
    state: str
    slot: str
    candidate_policy: str
    champion_policy: str
    step: int
    step_count: int
    share_percent: int
    text: str
    log10_evidence_not_worse: float
    log10_evidence_worse: float


@dataclass(frozen=True, slots=True)
class ShadowDivergence:
    """The fields of ShadowDivergence.msg up to the distance over all actions."""

    stamp_ns: int
    client_id: str
    seq: int
    shadow_policy: str
    rows: int
    divergence: float


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """EpisodeOutcome.msg; `stamp_ns` is by the clock of the judge."""

    stamp_ns: int
    client_id: str
    episode_id: str
    outcome: str
    duration_s: float
    score: float
    text: str


def decode_status(raw: bytes) -> ServerStatus:
    reader = CdrReader(raw)
    stamp_ns = read_stamp(reader)
    server, slot = reader.string(SERVER_LIMIT, 'server'), reader.string(SLOT_LIMIT, 'slot')
    policy = reader.string(FINGERPRINT_LIMIT, 'policy')
    reader.skip_string(TYPE_LIMIT, 'policy_type')
    reader.skip_string(DEVICE_LIMIT, 'device')
    state, _, _ = reader.unpack(STATUS_FLAGS, align=1)
    text = reader.string(TEXT_LIMIT, 'text')
    _, _, load, p50_ms, p99_ms, _ = reader.unpack(STATUS_NUMBERS, align=4)
    return ServerStatus(
        stamp_ns,
        server,
        slot,
        policy,
        constant_name(SERVER_STATES, state),
        text,
        load,
        p50_ms,
        p99_ms,
    )


def decode_router(raw: bytes) -> RouterState:
    reader = CdrReader(raw)
    stamp_ns = read_stamp(reader)
    server = reader.string(SERVER_LIMIT, 'server')
    health, text = reader.string(HEALTH_LIMIT, 'health'), reader.string(TEXT_LIMIT, 'text')
    (split_percent,) = reader.unpack(BYTE, align=1)
    (sessions,) = reader.unpack(UINT32, align=4)
    slots = tuple(_slot(reader) for _ in range(reader.count(SLOTS_LIMIT, 'slots')))
    hedges, _, _ = (reader.unpack(COUNT, align=8)[0] for _ in range(3))
    return RouterState(
        stamp_ns,
        server,
        health,
        text,
        split_percent,
        sessions,
        slots,
        hedges,
        read_drops(reader),
    )


def _slot(reader: CdrReader) -> SlotState:
    slot, policy = reader.string(SLOT_LIMIT, 'slot'), reader.string(FINGERPRINT_LIMIT, 'policy')
    (state,) = reader.unpack(BYTE, align=1)
    text = reader.string(TEXT_LIMIT, 'text')
    (share_percent,) = reader.unpack(BYTE, align=1)
    reader.unpack(UINT32, align=4)
    reader.unpack(SLOT_COUNTS, align=8)
    for _ in range(reader.count(REPLICAS_LIMIT, 'replicas')):
        _skip_replica(reader)
    return SlotState(slot, policy, constant_name(SLOT_STATES, state), text, share_percent)


def _skip_replica(reader: CdrReader) -> None:
    reader.skip_string(SERVER_LIMIT, 'server')
    reader.skip_string(SLOT_LIMIT, 'slot')
    reader.unpack(BYTE, align=1)
    reader.skip_string(TEXT_LIMIT, 'text')
    reader.skip_string(FINGERPRINT_LIMIT, 'policy')
    reader.unpack(REPLICA_NUMBERS, align=4)
    reader.unpack(REPLICA_COUNTS, align=8)


def decode_canary(raw: bytes) -> CanaryState:
    reader = CdrReader(raw)
    stamp_ns = read_stamp(reader)
    (state,) = reader.unpack(BYTE, align=1)
    slot = reader.string(SLOT_LIMIT, 'slot')
    candidate = reader.string(FINGERPRINT_LIMIT, 'candidate_policy')
    champion = reader.string(FINGERPRINT_LIMIT, 'champion_policy')
    step, step_count = reader.unpack(STEPS, align=4)
    (share_percent,) = reader.unpack(BYTE, align=1)
    text = reader.string(TEXT_LIMIT, 'text')
    reader.unpack(REMAINING, align=4)
    *_, not_worse, worse, _ = reader.unpack(EVIDENCE, align=8)
    return CanaryState(
        stamp_ns,
        constant_name(CANARY_STATES, state),
        slot,
        candidate,
        champion,
        step,
        step_count,
        share_percent,
        text,
        not_worse,
        worse,
    )


def decode_divergence(raw: bytes) -> ShadowDivergence:
    reader = CdrReader(raw)
    stamp_ns = read_stamp(reader)
    client_id = reader.string(ID_LIMIT, 'client_id')
    reader.skip_string(ID_LIMIT, 'episode_id')
    (seq,) = reader.unpack(UINT64, align=8)
    reader.skip_string(FINGERPRINT_LIMIT, 'live_policy')
    shadow_policy = reader.string(FINGERPRINT_LIMIT, 'shadow_policy')
    rows, divergence, _ = reader.unpack(DIVERGENCE, align=4)
    return ShadowDivergence(stamp_ns, client_id, seq, shadow_policy, rows, divergence)


def decode_outcome(raw: bytes) -> EpisodeOutcome:
    reader = CdrReader(raw)
    stamp_ns = read_stamp(reader)
    client_id = reader.string(ID_LIMIT, 'client_id')
    episode_id = reader.string(ID_LIMIT, 'episode_id')
    (outcome,) = reader.unpack(BYTE, align=1)
    duration_s, score = reader.unpack(SCORE, align=4)
    text = reader.string(TEXT_LIMIT, 'text')
    return EpisodeOutcome(
        stamp_ns,
        client_id,
        episode_id,
        constant_name(OUTCOMES, outcome),
        duration_s,
        score,
        text,
    )

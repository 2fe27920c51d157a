# SPDX-License-Identifier: Apache-2.0
"""Encode and decode ActionChunk.msg."""

from __future__ import annotations

from functools import lru_cache
import struct
from typing import Any, NamedTuple

from msgspec import field, Struct

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.cdr import CdrReader, CdrWriter, packed_part
from lerobot_serve.contract.data_path.header import (
    Envelope,
    Header,
    read_envelope_fields,
    write_envelope_fields,
)
from lerobot_serve.contract.data_path.message_parts import (
    NO_ACTIONS,
    read_actions,
    read_extensions,
    write_actions,
    write_extensions,
)
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT, SLOT_LIMIT, TEXT_LIMIT
from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.schema import MsgType, Status

SEED = struct.Struct('<Q')
TIMES = struct.Struct('<ffffIB')
# of a reply with the status QUOTA: seconds until the next request is admitted
RETRY_AFTER = 'lerobot_serve.retry_after'
SECONDS = struct.Struct('<d')
RETRY_AFTER_LIMIT_S = 3600.0


class Chunk(Struct, frozen=True, eq=False):
    """One reply. Actions are rows x columns; both are empty unless `status` is OK."""

    header: Header
    client_id: str
    episode_id: str
    robot: Float32Array = field(default_factory=lambda: NO_ACTIONS)
    model: Float32Array = field(default_factory=lambda: NO_ACTIONS)
    status: int = Status.OK
    status_text: str = ''
    slot: str = 'prod'
    policy: str = ''
    seed: int = 0
    queue_wait_ms: float = 0.0
    processing_ms: float = 0.0
    inference_ms: float = 0.0
    server_load: float = 0.0
    superseded: int = 0
    extensions: tuple[Extension, ...] = ()


class ReplySummary(NamedTuple):
    """The fields of a chunk that a router reads before it forwards the bytes."""

    start: Envelope
    seed: int
    status: int
    slot: str
    policy: str
    queue_wait_ms: float = 0.0
    processing_ms: float = 0.0
    inference_ms: float = 0.0


def encode(chunk: Chunk) -> bytes:
    """Return the CDR bytes. Raises Unencodable."""
    writer = CdrWriter()
    write_envelope_fields(writer, chunk.header, chunk.client_id, chunk.episode_id)
    writer.pack(SEED, chunk.seed, align=8)
    writer.pack(
        TIMES,
        chunk.queue_wait_ms,
        chunk.processing_ms,
        chunk.inference_ms,
        chunk.server_load,
        chunk.superseded,
        chunk.status,
        align=4,
    )
    writer.append_part(_texts(writer.phase, chunk.status_text, chunk.slot, chunk.policy))
    write_actions(writer, chunk.model, 'chunk_model')
    write_actions(writer, chunk.robot, 'chunk_robot')
    write_extensions(writer, chunk.extensions)
    return writer.finish()


@lru_cache(maxsize=64)
def _texts(phase: int, status_text: str, slot: str, policy: str) -> bytes:
    def write(writer: CdrWriter) -> None:
        writer.string(status_text, TEXT_LIMIT)
        writer.string(slot, SLOT_LIMIT)
        writer.string(policy, FINGERPRINT_LIMIT)

    return packed_part(phase, write)


def decode(raw: bytes) -> Chunk:
    """Return the chunk, whose arrays are views of `raw`. Raises Malformed."""
    reader = CdrReader(raw)
    start, seed, times, status_text, slot, policy = _read_before_actions(reader)
    queue_wait_ms, processing_ms, inference_ms, load, superseded, status = times
    model = read_actions(reader, 'chunk_model')
    robot = read_actions(reader, 'chunk_robot')
    return Chunk(
        *start,
        robot=robot,
        model=model,
        status=status,
        status_text=status_text,
        slot=slot,
        policy=policy,
        seed=seed,
        queue_wait_ms=queue_wait_ms,
        processing_ms=processing_ms,
        inference_ms=inference_ms,
        server_load=load,
        superseded=superseded,
        extensions=read_extensions(reader),
    )


def retry_after(seconds: float) -> Extension:
    """Return the extension that holds a client back for a time, an hour at most."""
    return Extension(RETRY_AFTER, SECONDS.pack(min(max(seconds, 0.0), RETRY_AFTER_LIMIT_S)))


def retry_after_s(chunk: Chunk) -> float:
    """
    Return the seconds until the next request is admitted; 0 where a reply has none that can be
    read.
    """
    for extension in chunk.extensions:
        if extension.key == RETRY_AFTER and len(extension.value) >= SECONDS.size:
            (seconds,) = SECONDS.unpack(bytes(extension.value[: SECONDS.size]))
            return seconds if 0 <= seconds <= RETRY_AFTER_LIMIT_S else 0.0
    return 0.0


def read_reply_summary(raw: bytes) -> ReplySummary:
    """Read the fields before the actions. Raises Malformed."""
    start, seed, times, _, slot, policy = _read_before_actions(CdrReader(raw))
    return ReplySummary(start, seed, times[-1], slot, policy, *times[:3])


def _read_before_actions(
    reader: CdrReader,
) -> tuple[Envelope, int, tuple[Any, ...], str, str, str]:
    """Return envelope, seed, the fields of TIMES, status text, slot and policy."""
    start = read_envelope_fields(reader)
    if start.header.msg_type != MsgType.CHUNK:
        raise Malformed(
            'wrong_type', f'msg_type must be {MsgType.CHUNK:d} here, got {start.header.msg_type}'
        )
    (seed,) = reader.unpack(SEED, align=8)
    return (
        start,
        seed,
        reader.unpack(TIMES, align=4),
        reader.string(TEXT_LIMIT, 'status_text'),
        reader.string(SLOT_LIMIT, 'slot'),
        reader.string(FINGERPRINT_LIMIT, 'policy'),
    )

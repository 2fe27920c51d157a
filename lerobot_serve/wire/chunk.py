"""ActionChunk.msg as an object, and its bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
import struct

import numpy as np

from lerobot_serve.wire.cdr import Reader, Writer
from lerobot_serve.wire.content import (
    Extension,
    NO_ACTIONS,
    read_actions,
    read_extensions,
    write_actions,
    write_extensions,
)
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import Header, read_start, write_start
from lerobot_serve.wire.schema import FINGERPRINT_LIMIT, MsgType, SLOT_LIMIT, Status, TEXT_LIMIT

SEED = struct.Struct('<Q')
TIMES = struct.Struct('<ffffIB')


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One answer. Actions are rows x columns; both are empty unless `status` is OK."""

    header: Header
    client_id: str
    episode_id: str
    robot: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
    model: np.ndarray = field(default_factory=lambda: NO_ACTIONS)
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


def encode(chunk: Chunk) -> bytes:
    """Return the CDR bytes. Raises Unencodable."""
    writer = Writer()
    write_start(writer, chunk.header, chunk.client_id, chunk.episode_id)
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
    writer.string(chunk.status_text, TEXT_LIMIT)
    writer.string(chunk.slot, SLOT_LIMIT)
    writer.string(chunk.policy, FINGERPRINT_LIMIT)
    write_actions(writer, chunk.model, 'chunk_model')
    write_actions(writer, chunk.robot, 'chunk_robot')
    write_extensions(writer, chunk.extensions)
    return writer.finish()


def decode(raw: bytes) -> Chunk:
    """Return the answer whose arrays are views of `raw`. Raises Malformed."""
    reader = Reader(raw)
    header, client_id, episode_id = read_start(reader)
    if header.msg_type != MsgType.CHUNK:
        raise Malformed(
            'wrong_type', f'msg_type must be {MsgType.CHUNK:d} here, got {header.msg_type}'
        )
    (seed,) = reader.unpack(SEED, align=8)
    queue_wait_ms, processing_ms, inference_ms, load, superseded, status = reader.unpack(
        TIMES, align=4
    )
    status_text = reader.string(TEXT_LIMIT, 'status_text')
    slot = reader.string(SLOT_LIMIT, 'slot')
    policy = reader.string(FINGERPRINT_LIMIT, 'policy')
    model = read_actions(reader, 'chunk_model')
    robot = read_actions(reader, 'chunk_robot')
    return Chunk(
        header,
        client_id,
        episode_id,
        robot,
        model,
        status,
        status_text,
        slot,
        policy,
        seed,
        queue_wait_ms,
        processing_ms,
        inference_ms,
        load,
        superseded,
        read_extensions(reader),
    )

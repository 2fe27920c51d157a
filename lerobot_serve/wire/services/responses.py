# SPDX-License-Identifier: Apache-2.0
"""
The responses of OpenSession, CloseSession, ResetEpisode and GetStatus, and ServerStatus.msg,
decoded without ROS. Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
import struct
from typing import Any

from lerobot_serve.wire.cdr import CdrReader, UINT32
from lerobot_serve.wire.message_parts import Extension, read_extensions
from lerobot_serve.wire.schema import (
    FINGERPRINT_LIMIT,
    ID_LIMIT,
    SLOT_LIMIT,
    TASK_LIMIT,
    TEXT_LIMIT,
)
from lerobot_serve.wire.services.session import CameraSpec

UINT8, UINT16, UINT64, FLOAT = (struct.Struct(f'<{code}') for code in 'BHQf')
INT32 = struct.Struct('<i')
CAMERA_LAYOUT, FLAGS = struct.Struct('<IIB'), struct.Struct('<BB')
KIND_LIMIT, DEVICE_LIMIT, REASON_LIMIT, DROP_LIMIT = 64, 32, 2048, 64
# far above the need of any robot
LIST_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class OpenSessionResponse:
    """The response half of OpenSession.srv."""

    accepted: bool
    code: int
    reason: str
    warnings: tuple[str, ...]
    schema_version: int
    session_epoch: int
    session_id: str
    observation_topic: str
    policy: str
    policy_type: str
    state_class: int
    warmed_up: bool
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[CameraSpec, ...]
    chunk_size: int
    trained_fps: float
    supports_rtc: bool
    observation_steps: int
    observation_stride_steps: int
    codec: int
    load: float
    predicted_delay_ms: float
    active_sessions: int
    max_sessions: int
    extensions: tuple[Extension, ...]


@dataclass(frozen=True, slots=True)
class CloseSessionResponse:
    """The response half of CloseSession.srv."""

    closed: bool
    text: str


@dataclass(frozen=True, slots=True)
class ResetEpisodeResponse:
    """The response half of ResetEpisode.srv."""

    acknowledged: bool
    text: str


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """ServerStatus.msg; `dropped` has reason and count."""

    stamp_ns: int
    server: str
    slot: str
    policy: str
    policy_type: str
    device: str
    state: int
    state_class: int
    warmed_up: bool
    text: str
    active_sessions: int
    max_sessions: int
    load: float
    inference_ms_p50: float
    inference_ms_p99: float
    queue_wait_ms_p99: float
    requests: int
    chunks: int
    superseded: int
    dropped: tuple[tuple[str, int], ...]
    memory_mb: float
    swap: int
    swap_text: str


@dataclass(frozen=True, slots=True)
class GetStatusResponse:
    """The response half of GetStatus.srv."""

    status: ServerStatus
    schema_version_min: int
    schema_version_max: int
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[CameraSpec, ...]
    chunk_size: int
    trained_fps: float
    supports_rtc: bool
    observation_steps: int
    observation_stride_steps: int
    default_task: str
    task_pinned: bool


def read_open(reader: CdrReader) -> OpenSessionResponse:
    # in the order of the file: arguments are evaluated as they are written
    accepted, code = reader.unpack(FLAGS, align=1)
    return OpenSessionResponse(
        accepted=bool(accepted),
        code=code,
        reason=reader.string(REASON_LIMIT, 'reason'),
        warnings=_read_texts(reader, TEXT_LIMIT, 'warnings'),
        schema_version=_one(reader, UINT16),
        session_epoch=_one(reader, UINT32),
        session_id=reader.string(ID_LIMIT, 'session_id'),
        observation_topic=reader.string(FINGERPRINT_LIMIT, 'observation_topic'),
        policy=reader.string(FINGERPRINT_LIMIT, 'policy'),
        policy_type=reader.string(KIND_LIMIT, 'policy_type'),
        state_class=_one(reader, UINT8),
        warmed_up=bool(_one(reader, UINT8)),
        state_names=_read_texts(reader, ID_LIMIT, 'state_names'),
        action_names=_read_texts(reader, ID_LIMIT, 'action_names'),
        cameras=_read_cameras(reader),
        chunk_size=_one(reader, UINT32),
        trained_fps=_one(reader, FLOAT),
        supports_rtc=bool(_one(reader, UINT8)),
        observation_steps=_one(reader, UINT32),
        observation_stride_steps=_one(reader, UINT32),
        codec=_one(reader, UINT8),
        load=_one(reader, FLOAT),
        predicted_delay_ms=_one(reader, FLOAT),
        active_sessions=_one(reader, UINT32),
        max_sessions=_one(reader, UINT32),
        extensions=read_extensions(reader),
    )


def read_close(reader: CdrReader) -> CloseSessionResponse:
    return CloseSessionResponse(bool(_one(reader, UINT8)), reader.string(TEXT_LIMIT, 'text'))


def read_reset(reader: CdrReader) -> ResetEpisodeResponse:
    return ResetEpisodeResponse(bool(_one(reader, UINT8)), reader.string(TEXT_LIMIT, 'text'))


def read_status(raw: bytes) -> ServerStatus:
    """Return ServerStatus.msg. Raises Malformed."""
    return _read_status(CdrReader(raw))


def _read_status(reader: CdrReader) -> ServerStatus:
    return ServerStatus(
        stamp_ns=_one(reader, INT32) * 1_000_000_000 + _one(reader, UINT32),
        server=reader.string(FINGERPRINT_LIMIT, 'server'),
        slot=reader.string(SLOT_LIMIT, 'slot'),
        policy=reader.string(FINGERPRINT_LIMIT, 'policy'),
        policy_type=reader.string(KIND_LIMIT, 'policy_type'),
        device=reader.string(DEVICE_LIMIT, 'device'),
        state=_one(reader, UINT8),
        state_class=_one(reader, UINT8),
        warmed_up=bool(_one(reader, UINT8)),
        text=reader.string(TEXT_LIMIT, 'text'),
        active_sessions=_one(reader, UINT32),
        max_sessions=_one(reader, UINT32),
        load=_one(reader, FLOAT),
        inference_ms_p50=_one(reader, FLOAT),
        inference_ms_p99=_one(reader, FLOAT),
        queue_wait_ms_p99=_one(reader, FLOAT),
        requests=_one(reader, UINT64),
        chunks=_one(reader, UINT64),
        superseded=_one(reader, UINT64),
        dropped=tuple(
            (reader.string(DROP_LIMIT, 'reason'), _one(reader, UINT64))
            for _ in range(reader.count(LIST_LIMIT, 'dropped'))
        ),
        memory_mb=_one(reader, FLOAT),
        swap=_one(reader, UINT8),
        swap_text=reader.string(TEXT_LIMIT, 'swap_text'),
    )


def read_get_status(reader: CdrReader) -> GetStatusResponse:
    return GetStatusResponse(
        status=_read_status(reader),
        schema_version_min=_one(reader, UINT16),
        schema_version_max=_one(reader, UINT16),
        state_names=_read_texts(reader, ID_LIMIT, 'state_names'),
        action_names=_read_texts(reader, ID_LIMIT, 'action_names'),
        cameras=_read_cameras(reader),
        chunk_size=_one(reader, UINT32),
        trained_fps=_one(reader, FLOAT),
        supports_rtc=bool(_one(reader, UINT8)),
        observation_steps=_one(reader, UINT32),
        observation_stride_steps=_one(reader, UINT32),
        default_task=reader.string(TASK_LIMIT, 'default_task'),
        task_pinned=bool(_one(reader, UINT8)),
    )


def _one(reader: CdrReader, layout: struct.Struct) -> Any:
    return reader.unpack(layout, align=layout.size)[0]


def _read_texts(reader: CdrReader, limit: int, what: str) -> tuple[str, ...]:
    return tuple(reader.string(limit, what) for _ in range(reader.count(LIST_LIMIT, what)))


def _read_cameras(reader: CdrReader) -> tuple[CameraSpec, ...]:
    return tuple(
        CameraSpec(reader.string(ID_LIMIT, 'camera'), *reader.unpack(CAMERA_LAYOUT, align=4))
        for _ in range(reader.count(LIST_LIMIT, 'cameras'))
    )

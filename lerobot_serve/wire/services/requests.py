# SPDX-License-Identifier: Apache-2.0
"""
Encode the requests of OpenSession, CloseSession and ResetEpisode, and decode the responses of all
services, for a client without ROS. This module implements ServiceMessages of zenoh.session_client,
as ros.contract.service_bytes does with ROS. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lerobot_serve.wire.cdr import CdrReader, CdrWriter, UINT32
from lerobot_serve.wire.message_parts import Extension, write_extensions
from lerobot_serve.wire.schema import FINGERPRINT_LIMIT, ID_LIMIT, TASK_LIMIT
from lerobot_serve.wire.services.responses import (
    CAMERA_LAYOUT,
    FLOAT,
    LIST_LIMIT,
    read_close,
    read_get_status,
    read_open,
    read_reset,
    UINT8,
    UINT16,
    UINT64,
)
from lerobot_serve.wire.services.session import CameraSpec, SessionRequest


@dataclass(frozen=True, slots=True)
class ResetEpisodeRequest:
    """The request half of ResetEpisode.srv."""

    client_id: str
    session_epoch: int
    episode: int
    episode_id: str


READERS: dict[str, Callable[[CdrReader], Any]] = {
    'open_session': read_open,
    'close_session': read_close,
    'reset_episode': read_reset,
    'get_status': read_get_status,
}


def open_request(session_request: SessionRequest) -> bytes:
    """Return the request of OpenSession. Raises Unencodable."""
    writer, given = CdrWriter(), session_request
    writer.pack(UINT16, given.schema_version, align=2)
    writer.string(given.client_id, ID_LIMIT)
    writer.pack(UINT64, given.instance, align=8)
    writer.pack(UINT32, given.session_epoch, align=4)
    writer.string(given.reply_topic, FINGERPRINT_LIMIT)
    writer.string(given.robot_type, ID_LIMIT)
    writer.string(given.policy, FINGERPRINT_LIMIT)
    writer.pack(FLOAT, given.fps, align=4)
    _write_names(writer, given.state_names, 'state_names')
    _write_names(writer, given.action_names, 'action_names')
    _write_cameras(writer, given.cameras)
    writer.string(given.task, TASK_LIMIT)
    writer.pack(UINT8, given.wants_rtc, align=1)
    writer.pack(UINT32, given.rtc_execution_horizon, align=4)
    writer.pack(UINT8, given.codec, align=1)
    writer.pack(FLOAT, given.reply_deadline_s, align=4)
    writer.count(len(given.tags), LIST_LIMIT, 'tags')
    for key, value in given.tags:
        writer.string(key, ID_LIMIT)
        writer.string(value, ID_LIMIT)
    write_extensions(writer, tuple(Extension(key, value) for key, value in given.extensions))
    return writer.finish()


def close_request(client_id: str, session_epoch: int) -> bytes:
    """Return the request of CloseSession. Raises Unencodable."""
    writer = CdrWriter()
    writer.string(client_id, ID_LIMIT)
    writer.pack(UINT32, session_epoch, align=4)
    return writer.finish()


def encode(request: ResetEpisodeRequest) -> bytes:
    """Return the request of ResetEpisode. Raises Unencodable."""
    writer = CdrWriter()
    writer.string(request.client_id, ID_LIMIT)
    writer.pack(UINT32, request.session_epoch, align=4)
    writer.pack(UINT32, request.episode, align=4)
    writer.string(request.episode_id, ID_LIMIT)
    return writer.finish()


def decode(service: str, raw: bytes) -> Any:
    """Return the response of a service, by its name. Raises Malformed."""
    return READERS[service](CdrReader(raw))


def _write_names(writer: CdrWriter, names: tuple[str, ...], what: str) -> None:
    writer.count(len(names), LIST_LIMIT, what)
    for name in names:
        writer.string(name, ID_LIMIT)


def _write_cameras(writer: CdrWriter, cameras: tuple[CameraSpec, ...]) -> None:
    writer.count(len(cameras), LIST_LIMIT, 'cameras')
    for camera in cameras:
        writer.string(camera.name, ID_LIMIT)
        writer.pack(CAMERA_LAYOUT, camera.height, camera.width, camera.channels, align=4)

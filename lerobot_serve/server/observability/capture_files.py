# SPDX-License-Identifier: Apache-2.0
"""
Name, write and rotate the files of request captures. Thread: `capture`.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass
from pathlib import Path
import re
from typing import Any

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.names import file_name
from lerobot_serve.server.observability.request_ring import CapturedRequest
from lerobot_serve.trace.format import incident_file
from lerobot_serve.trace.format.incident_file import RecordedExchange
from lerobot_serve.trace.format.records import STATUSES, wall_text

# approximate size of a file without its requests
METADATA_BYTES = 4096
# TIME-CLIENT-SEQ-REASON; a killed process may leave a partial file
CAPTURE_FILE_NAME = re.compile(r'\d{8}T\d{6}\.\d{3}Z-.+-\d+-[a-z_]+\.safetensors(\.part)?')


@dataclass(frozen=True, slots=True)
class CaptureReason:
    """Why requests are captured; without a client, those of all clients."""

    code: str
    wall_s: float
    client: str = ''
    seq: int = 0
    text: str = ''


class CaptureFiles:
    """At most `limit_bytes` in `folder`; `metadata` returns the fields of every file."""

    def __init__(
        self, folder: Path, limit_bytes: int, metadata: Callable[[], dict[str, Any]]
    ) -> None:
        self.folder = folder
        self._limit_bytes, self._metadata = limit_bytes, metadata

    def path(self, reason: CaptureReason) -> Path:
        """Return the path of the file for this capture."""
        client = file_name(reason.client) if reason.client else 'all'
        when = wall_text(reason.wall_s).replace('-', '').replace(':', '')
        return self.folder / f'{when}-{client}-{reason.seq}-{reason.code}{incident_file.SUFFIX}'

    def write(self, reason: CaptureReason, kept: list[CapturedRequest]) -> Path:
        """Write a file and return its path; remove the oldest files. Raises OSError."""
        path = self.path(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_oldest(sum(each.size for each in kept) + METADATA_BYTES)
        incident = {
            'code': reason.code,
            'wall_time': wall_text(reason.wall_s),
            'client_id': reason.client,
            'seq': reason.seq,
            'reason': reason.text,
        }
        incident_file.write_incident(
            path, [incident_pair(each) for each in kept], incident | self._metadata()
        )
        return path

    def _remove_oldest(self, size: int) -> None:
        """Remove the oldest files until `size` fits. Raises OSError."""
        # names begin with the time
        files = sorted(
            path for path in self.folder.iterdir() if CAPTURE_FILE_NAME.fullmatch(path.name)
        )
        sizes = [file_size(path) for path in files]
        excess = sum(sizes) + size - self._limit_bytes
        for path, freed in zip(files, sizes, strict=True):
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                excess -= freed


def incident_pair(kept: CapturedRequest) -> RecordedExchange:
    """Return a request and its reply with the fields a replay needs."""
    chunk, session = wire_chunk.decode(kept.reply), kept.queued.session
    info = {
        'client_id': chunk.client_id,
        'session_epoch': chunk.header.session_epoch,
        'seq': chunk.header.seq,
        'episode': chunk.header.episode,
        'episode_id': chunk.episode_id,
        'wall_time': wall_text(kept.wall_s),
        'status': STATUSES[chunk.status],
        'reason': chunk.status_text,
        'slot': chunk.slot,
        'policy': chunk.policy,
        'seed': chunk.seed,
        'queue_wait_ms': chunk.queue_wait_ms,
        'inference_ms': chunk.inference_ms,
        'session_id': session.session_id,
        'task': session.task,
        'robot_type': session.request.robot_type,
        'rtc_execution_horizon': session.request.rtc_execution_horizon,
        'reply_deadline_s': session.request.reply_deadline_s,
    }
    return RecordedExchange(bytes(kept.queued.raw), kept.reply, info)


def file_size(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

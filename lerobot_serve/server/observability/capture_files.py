"""
The files of captures: what each is called, what it says, and how much room they may take together.
The thread that captures.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
import re
from typing import Any

from lerobot_serve.server.observability.request_ring import CapturedRequest
from lerobot_serve.trace.format import incident_file
from lerobot_serve.trace.format.incident_file import RecordedExchange
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.names import file_name
from lerobot_serve.wire.schema import Status

STATUS_NAMES = {int(status): status.name.lower() for status in Status}
# what a file says beside its requests, about
METADATA_BYTES = 4096
# WHEN-CLIENT-SEQ-WHY; a killed process may leave one that is not whole
CAPTURE_FILE_NAME = re.compile(r'\d{8}T\d{6}\.\d{3}Z-.+-\d+-[a-z_]+\.safetensors(\.part)?')


@dataclass(frozen=True, slots=True)
class CaptureReason:
    """Why requests are captured; without a client they are everybody's."""

    why: str
    wall_s: float
    client: str = ''
    seq: int = 0
    reason: str = ''


class CaptureFiles:
    """At most `limit_bytes` in `folder`; `facts` tells what stands in every file."""

    def __init__(
        self, folder: Path, limit_bytes: int, facts: Callable[[], dict[str, Any]]
    ) -> None:
        self.folder = folder
        self._limit_bytes, self._facts = limit_bytes, facts

    def path(self, trouble: CaptureReason) -> Path:
        """Return where these requests lie once they are written."""
        client = file_name(trouble.client) if trouble.client else 'all'
        when = utc_timestamp(trouble.wall_s).replace('-', '').replace(':', '')
        return self.folder / f'{when}-{client}-{trouble.seq}-{trouble.why}{incident_file.SUFFIX}'

    def write(self, trouble: CaptureReason, kept: list[CapturedRequest]) -> Path:
        """Write the file and return where it is; the oldest go for it. Raises OSError."""
        path = self.path(trouble)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room(sum(each.size for each in kept) + METADATA_BYTES)
        told = {
            'why': trouble.why,
            'when': utc_timestamp(trouble.wall_s),
            'client': trouble.client,
            'seq': trouble.seq,
            'reason': trouble.reason,
        }
        incident_file.write_incident(
            path, [incident_pair(each) for each in kept], told | self._facts()
        )
        return path

    def _make_room(self, size: int) -> None:
        """Remove the oldest files until there is room. Raises OSError."""
        # their names begin with when they were made
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
    """Return a request and its answer with all that a replay needs to know."""
    chunk, session = wire_chunk.decode(kept.answer), kept.mail.session
    info = {
        'client': chunk.client_id,
        'session_epoch': chunk.header.session_epoch,
        'seq': chunk.header.seq,
        'episode': chunk.header.episode,
        'episode_id': chunk.episode_id,
        'when': utc_timestamp(kept.wall_s),
        'status': STATUS_NAMES[chunk.status],
        'reason': chunk.status_text,
        'slot': chunk.slot,
        'policy': chunk.policy,
        'seed': chunk.seed,
        'queue_wait_ms': chunk.queue_wait_ms,
        'inference_ms': chunk.inference_ms,
        'session_id': session.session_id,
        'task': session.task,
        'robot_type': session.ask.robot_type,
        'rtc_execution_horizon': session.ask.rtc_execution_horizon,
        'answer_within_s': session.ask.answer_within_s,
    }
    return RecordedExchange(kept.mail.raw, kept.answer, info)


def utc_timestamp(wall_s: float) -> str:
    """Return the time of day as traces have it."""
    when = datetime.fromtimestamp(wall_s, timezone.utc)
    return when.isoformat(timespec='milliseconds').replace('+00:00', 'Z')


def file_size(path: Path) -> int:
    """Return the size of a file, 0 for one that is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

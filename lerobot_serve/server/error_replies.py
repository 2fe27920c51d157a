# SPDX-License-Identifier: Apache-2.0
"""Builds the texts and chunks of error replies. Pure; any thread."""

from __future__ import annotations

from lerobot_serve.contract.cdr import encodable_text, Raw
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.schema import Flag, Status


def error_chunk(
    raw: Raw,
    status: Status,
    text: str,
    *,
    slot: str = 'prod',
    policy: str = '',
    seed: int = 0,
    queue_wait_ms: float = 0.0,
    server_load: float = 0.0,
    superseded: int = 0,
) -> Chunk:
    """Return an error reply. Raises Malformed if `raw` is not a request."""
    header, client_id, episode_id = read_envelope(raw)
    return Chunk(
        header.for_reply(Flag.NONE),
        client_id,
        episode_id,
        status=status,
        status_text=encodable_text(text),
        slot=slot,
        policy=policy,
        seed=seed,
        queue_wait_ms=queue_wait_ms,
        server_load=server_load,
        superseded=superseded,
    )


def not_ready_chunk(raw: Raw, text: str) -> Chunk:
    """Return the reply of a server without an active policy."""
    return error_chunk(raw, Status.DRAINING, f'not ready: {text}')


def no_session_text(client_id: str, session_epoch: int) -> str:
    return f'{client_id!r} has no session of epoch {session_epoch}'

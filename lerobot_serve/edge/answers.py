"""What an answer must hold to be played, and how an episode is called. Pure functions."""

from __future__ import annotations

import numpy as np

from lerobot_serve.edge.ledger import Dropped
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.schema import ID_LIMIT, Status


def check_actions(chunk: Chunk, columns: int) -> None:
    """Raise Dropped or Malformed for an answer that holds no usable actions."""
    if chunk.status != Status.OK:
        known = chunk.status in tuple(Status)
        raise Dropped(Status(chunk.status).name.lower() if known else 'unknown_status')
    if chunk.robot.shape[1] != columns or not len(chunk.robot):
        raise Malformed('wrong_shape', f'{chunk.robot.shape} is no chunk of this robot')
    if not np.isfinite(chunk.robot).all():
        raise Malformed('not_finite', 'the chunk holds NaN or infinity')


def name_episode(client_id: str, session_epoch: int, number: int) -> str:
    """Return a name that no other episode of the fleet has and that a message can hold."""
    end = f'-{session_epoch:08x}-{number:04d}'
    return client_id.encode()[: ID_LIMIT - len(end)].decode(errors='ignore') + end

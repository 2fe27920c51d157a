# SPDX-License-Identifier: Apache-2.0
"""Select the new rows of a reply for a record. Pure functions; any thread."""

from __future__ import annotations

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Flag


def repeated_rows(request: Observation) -> int:
    """Return the number of prefix rows that the reply repeats."""
    return min(request.inference_delay_steps, len(request.prefix_robot))


def chunk_range(chunk: Chunk, repeated: int) -> list[int] | None:
    """
    Return the first new row and the number of rows; None for a reply without actions.

    The rows before the first repeat the prefix, unless it was ignored.
    """
    rows = len(chunk.robot)
    first = 0 if chunk.header.flags & Flag.PREFIX_IGNORED else repeated
    return [first, rows] if rows else None

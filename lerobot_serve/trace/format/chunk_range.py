"""Which rows of an answer a record names. Pure functions; any thread."""

from __future__ import annotations

from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Flag


def repeated_rows(request: Observation) -> int:
    """Return how many rows of the prefix pass while the answer is made."""
    return min(request.inference_delay_steps, len(request.prefix_robot))


def chunk_range(answer: Chunk, repeated: int) -> list[int] | None:
    """
    Return the first row that is new and the number of rows; None of an answer without actions.

    The rows before the first repeat the prefix, unless it was ignored.
    """
    rows = len(answer.robot)
    first = 0 if answer.header.flags & Flag.PREFIX_IGNORED else repeated
    return [first, rows] if rows else None

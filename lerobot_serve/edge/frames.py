"""The frames of an observation in wire form. Pure functions; the request thread calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lerobot_serve.edge.history import Moment
from lerobot_serve.wire.content import Image
from lerobot_serve.wire.images import ImagePool
from lerobot_serve.wire.schema import Codec


def encode_frames(
    moments: tuple[Moment, ...],
    cameras: tuple[str, ...],
    images: ImagePool,
    codec: Codec,
    quality: int,
    *,
    opened: Callable[[bytes], np.ndarray],
) -> tuple[Image, ...]:
    """
    Return the frames of all moments, in the order of the moments and then of the cameras.

    All are encoded in one call, so that threads share them; one that stands in several moments is
    opened and encoded once. Raises Malformed or Unencodable.
    """
    rows = [(name, moment) for moment in moments for name in cameras]
    distinct: dict[tuple[str, int], str] = {}
    frames: dict[str, np.ndarray] = {}
    for name, moment in reversed(rows):
        raw = moment.snapshot.values[name]
        if (name, id(raw)) not in distinct:
            # what the text of an error calls it
            label = f'{name}, {moment.steps_back} steps back'
            distinct[name, id(raw)], frames[label] = label, opened(raw)
    encoded = dict(zip(frames, images.encode_all(frames, codec, quality), strict=True))
    return tuple(
        replace(
            encoded[distinct[name, id(moment.snapshot.values[name])]],
            name=name,
            steps_back=moment.steps_back,
        )
        for name, moment in rows
    )

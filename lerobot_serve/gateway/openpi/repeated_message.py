# SPDX-License-Identifier: Apache-2.0
"""
Read the messages of one client, which as a rule differ in the contents of their arrays alone.

Such a message is not parsed again: its bytes outside of the arrays are compared with those of the
last one, and equal bytes have an equal meaning. The arrays are views of the message, as those of
the parser are, and nothing of an earlier message is kept. The event loop owns it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lerobot_serve.gateway.openpi.msgpack_reader import read_message

# names, sizes and an instruction; a state of many numbers is parsed
OUTSIDE_LIMIT_BYTES = 4096
# a client whose messages differ otherwise, such as in a time
MISSES_LIMIT = 8


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an array is in a message."""

    begin: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int

    @property
    def end(self) -> int:
        return self.begin + self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Layout:
    """
    A message without the contents of its arrays: `template` has places instead of arrays,
    `outside` each piece between them with its position.
    """

    template: Any
    outside: tuple[tuple[int, bytes], ...]
    size: int

    def is_of(self, data: memoryview) -> bool:
        return len(data) == self.size and all(
            data[begin : begin + len(piece)] == piece for begin, piece in self.outside
        )


class RepeatedMessage:
    """See the module."""

    def __init__(self) -> None:
        self._layout: _Layout | None = None
        self._misses = 0

    def read(self, data: memoryview) -> Any:
        """Return what `read_message` returns, and raise what it raises."""
        if self._layout and self._layout.is_of(data):
            self._misses = 0
            return _filled(self._layout.template, data)
        message = read_message(data)
        self._misses += 1
        self._layout = _layout_of(message, data) if self._misses <= MISSES_LIMIT else None
        return message


def _filled(part: Any, data: memoryview) -> Any:
    if isinstance(part, _Place):
        return np.frombuffer(data, part.dtype, part.size, part.begin).reshape(part.shape)
    if isinstance(part, dict):
        return {key: _filled(value, data) for key, value in part.items()}
    return [_filled(value, data) for value in part] if isinstance(part, list) else part


def _layout_of(message: Any, data: memoryview) -> _Layout | None:
    """Return the layout of a message, None for one that is better parsed."""
    places: list[_Place] = []
    try:
        template = _template(message, np.frombuffer(data, np.uint8).ctypes.data, places)
    except ValueError:
        return None
    edges = [0, *(edge for place in places for edge in (place.begin, place.end)), len(data)]
    outside = tuple(
        (begin, bytes(data[begin:end])) for begin, end in zip(edges[::2], edges[1::2], strict=True)
    )
    if sum(len(piece) for _, piece in outside) > OUTSIDE_LIMIT_BYTES:
        return None
    return _Layout(template, outside, len(data))


def _template(part: Any, start: int, places: list[_Place]) -> Any:
    """Collect the places of the arrays, in order. Raises ValueError for other views."""
    if isinstance(part, np.ndarray) and part.size:
        place = _Place(part.ctypes.data - start, part.dtype, part.shape, part.size)
        places.append(place)
        return place
    if isinstance(part, dict):
        return {key: _template(value, start, places) for key, value in part.items()}
    if isinstance(part, list):
        return [_template(value, start, places) for value in part]
    if part is None or isinstance(part, (bool, int, float, str)):
        return part
    raise ValueError(f'{type(part).__name__} is a view of the message')

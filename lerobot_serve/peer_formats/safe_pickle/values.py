# SPDX-License-Identifier: Apache-2.0
"""
What stands on the reader's stack beside Python's own None, bool, int, float, str, tuple, list and
dict: names as tokens, and values that are complete only after a BUILD. And what bounds a pickle.

Bytes are memoryviews of the pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.peer_formats.array_types import PeerFormatError

AnyArray = NDArray[Any]
Arguments = tuple[object, ...]
# a name out of a pickle is quoted in an error up to this length
QUOTED_CHARACTERS = 80


class PickleRefused(PeerFormatError):
    """The pickle holds something that the reader does not accept; the text says what."""


def quoted(text: str) -> str:
    """Return a text out of a pickle, shortened and escaped for one line of a log."""
    return ascii(text[:QUOTED_CHARACTERS])[1:-1]


@dataclass(frozen=True, slots=True)
class Limits:
    """
    The bounds of what one pickle may ask for, each checked before anything is built.

    Arrays are views of the pickle, so `pickle_bytes` bounds them too; only big-endian arrays and
    the text form of protocol 2 are copied, each byte once, up to `copied_bytes`.
    """

    pickle_bytes: int = 32 * 2**20
    copied_bytes: int = 16 * 2**20
    # one text, and all texts together: names of joints, the task
    text_bytes: int = 4096
    all_text_bytes: int = 2**20
    opcodes: int = 20_000
    stack_items: int = 4096
    marks: int = 32
    array_dimensions: int = 8


@dataclass(slots=True)
class Budget:
    """What may still be read; one for each pickle, shared with those inside it."""

    limits: Limits
    opcodes_left: int = field(init=False)
    copied_left: int = field(init=False)
    text_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.opcodes_left = self.limits.opcodes
        self.copied_left = self.limits.copied_bytes
        self.text_left = self.limits.all_text_bytes

    def copy(self, size: int) -> None:
        """Count bytes that are about to be copied. Raises PickleRefused."""
        self.copied_left -= size
        if self.copied_left < 0:
            raise PickleRefused(
                f'more than {self.limits.copied_bytes} bytes of big-endian arrays or of pickle '
                'protocol 2; send native arrays with protocol 4 or 5'
            )

    def text(self, size: int) -> None:
        """Count bytes of text that are about to be decoded. Raises PickleRefused."""
        self.text_left -= size
        if self.text_left < 0:
            self.refuse_text()

    def refuse_text(self) -> None:
        raise PickleRefused(f'more than {self.limits.all_text_bytes} bytes of text')


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """An allowed name of the pickle. It is never imported; `call` is a function of this reader."""

    name: str
    # the meaning of a REDUCE; None: the name cannot be called
    call: Callable[[Arguments, Budget], object] | None = None
    # a class whose objects are records
    is_record: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """An object of an allowed class: its fields, once a BUILD has set them."""

    name: str
    fields: dict[str, object] | None = None

    def build(self, state: object, budget: Budget) -> None:
        """Set the fields. Raises PickleRefused."""
        if type(state) is not dict or self.fields is not None:
            raise PickleRefused(f'a {self.name} is not built from one dict of fields')
        self.fields = state


@dataclass(frozen=True, slots=True, eq=False)
class LongText:
    """A text above the bound of texts, not decoded: protocol 2 writes bytes so."""

    view: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """The numbers of a torch tensor, as a flat array."""

    numbers: AnyArray


@dataclass(slots=True, eq=False)
class Dtype:
    """The type of the elements of an array, once a BUILD has set the byte order."""

    native: np.dtype[Any]
    found: np.dtype[Any] | None = None

    def build(self, state: object, budget: Budget) -> None:
        """Set the byte order. Raises PickleRefused."""
        order = state[1] if type(state) is tuple and len(state) == 8 else None
        if type(order) is not str or order not in ('<', '>', '|', '=') or self.found is not None:
            raise PickleRefused('a dtype has an unknown state')
        if state != (3, order, None, None, None, -1, -1, 0):
            raise PickleRefused('a dtype has fields, a shape or an alignment; send plain numbers')
        self.found = np.dtype(f'{order}{self.native.str[1:]}')


@dataclass(slots=True, eq=False)
class Array:
    """An array, once a BUILD has set its numbers."""

    numbers: AnyArray | None = field(default=None)

    def build(self, state: object, budget: Budget) -> None:
        """Set shape and numbers from numpy's state. Raises PickleRefused."""
        if type(state) is not tuple or len(state) != 5 or self.numbers is not None:
            raise PickleRefused('an array has an unknown state')
        version, shape, dtype, is_fortran, data = state
        if version != 1 or type(is_fortran) is not bool:
            raise PickleRefused('an array has an unknown state')
        self.numbers = array_of(data, dtype, shape, 'F' if is_fortran else 'C', budget)


def array_of(data: object, dtype: object, shape: object, order: str, budget: Budget) -> AnyArray:
    """
    Return an array over bytes of the pickle, native and read-only. Nothing is allocated before the
    shape agrees with the number of bytes. Raises PickleRefused.
    """
    if type(data) is not memoryview or type(dtype) is not Dtype or dtype.found is None:
        raise PickleRefused('an array is not made of bytes and a dtype')
    sizes = checked_shape(shape, budget.limits.array_dimensions)
    wanted = dtype.found.itemsize
    for size in sizes:
        wanted *= size
    if not wanted:
        raise PickleRefused('an array has no elements')
    if wanted != data.nbytes:
        raise PickleRefused(
            f'an array of shape {sizes} and type {dtype.found} takes {wanted} bytes, '
            f'got {data.nbytes}'
        )
    flat = np.frombuffer(data, dtype.found)
    return native(flat, budget).reshape(sizes, order='F' if order == 'F' else 'C')


def checked_shape(shape: object, most_dimensions: int) -> tuple[int, ...]:
    """Return a shape of numbers that numpy can hold. Raises PickleRefused."""
    if type(shape) is not tuple or len(shape) > most_dimensions:
        raise PickleRefused(f'an array has no shape of at most {most_dimensions} sizes')
    sizes = [size for size in shape if type(size) is int and 0 <= size < 2**31]
    if len(sizes) != len(shape):
        raise PickleRefused('an array has a size that is not a number in [0, 2^31)')
    return tuple(sizes)


def native(numbers: AnyArray, budget: Budget) -> AnyArray:
    """Return the numbers in the byte order of this machine."""
    if numbers.dtype.isnative:
        return numbers
    budget.copy(numbers.nbytes)
    return numbers.astype(numbers.dtype.newbyteorder('='))

# SPDX-License-Identifier: Apache-2.0
"""
The types of fields in `contract.records`: a number has the letter of `struct` for its size, a text
the bytes that it may have. Pure; any thread.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Self, TypeAlias

from msgspec import field, Struct
import numpy as np

from lerobot_serve.arrays import Uint8Array

UInt8: TypeAlias = Annotated[int, 'B']
UInt16: TypeAlias = Annotated[int, 'H']
UInt32: TypeAlias = Annotated[int, 'I']
UInt64: TypeAlias = Annotated[int, 'Q']
Int32: TypeAlias = Annotated[int, 'i']
Int64: TypeAlias = Annotated[int, 'q']
Float32: TypeAlias = Annotated[float, 'f']
Float64: TypeAlias = Annotated[float, 'd']
Bool: TypeAlias = Annotated[bool, '?']
# any buffer when a message is written, a view of the message when it is read
Bytes: TypeAlias = Uint8Array | bytes


class Constants(IntEnum):
    """The constants of a field of one byte. A newer peer may have more: they become members."""

    @classmethod
    def _missing_(cls, value: object) -> Constants | None:
        if type(value) is not int or not 0 <= value <= 0xFF:
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f'unknown ({value})', value
        return member

    @classmethod
    def of(cls, number: int) -> Self:
        """Return the member; as fast as a dictionary for one that has a name."""
        known = cls._value2member_map_.get(number)
        return cls(number) if known is None else known  # type: ignore[return-value]

    @classmethod
    def named(cls, word: str) -> Self:
        """Return the member of a word. Raises KeyError, also for what is not text."""
        return cls[word.upper() if isinstance(word, str) else word]

    @property
    def word(self) -> str:
        """The name as files and pages have it, in lower case."""
        return self.name.lower()


class Time(Struct, frozen=True):
    """builtin_interfaces/Time."""

    sec: Int32 = 0
    nanosec: UInt32 = 0

    @property
    def ns(self) -> int:
        """Nanoseconds since 1970."""
        return self.sec * 10**9 + self.nanosec

    @classmethod
    def of_ns(cls, ns: int) -> Self:
        return cls(*divmod(ns, 10**9))


class KeyValue(Struct, frozen=True):
    """diagnostic_msgs/KeyValue, with the limit of names."""

    key: Annotated[str, 128] = ''
    value: Annotated[str, 128] = ''


def no_values(element: type[np.generic]) -> Any:
    """Return the default of a field with an array: an empty one."""
    empty = np.zeros(0, element)
    return field(default_factory=lambda: empty)

# SPDX-License-Identifier: Apache-2.0
"""
Walk the opcodes of a pickle. Nothing is imported or called by a name of the pickle: a name is a
token of an allow-list, and what a REDUCE or BUILD of it means is a function of this package.

A list, dict or record is never referred to twice, so what comes out is a tree no larger than the
pickle, without a cycle.

Thread: any; a reader belongs to one pickle. Raises PickleRefused for every pickle it does not
accept, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
import struct

from lerobot_serve.peer_formats.safe_pickle.values import Budget, Global, Limits, PickleRefused

KnownNames = Mapping[tuple[str, str], Global]
STOP, MEMOIZE, SHORT_TEXT, UINT8 = 0x2E, 0x94, 0x8C, 0x4B


@dataclass(slots=True)
class Reader:
    """The state of a walk. A handler takes the position after its opcode and returns the next."""

    view: memoryview
    names: KnownNames
    budget: Budget
    stack: list[object] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        return self.budget.limits

    def take(self, position: int, size: int) -> memoryview:
        """Return bytes of the pickle as a view. Raises PickleRefused past the end."""
        if size > len(self.view) - position:
            raise PickleRefused('it is cut off')
        return self.view[position : position + size]

    def push_container(self, container: object) -> None:
        """Push what other values may be put into."""
        if len(self.stack) >= self.limits.stack_items:
            raise PickleRefused(f'more than {self.limits.stack_items} values wait on the stack')
        self.stack.append(container)

    def pop_mark(self) -> list[object]:
        """Remove and return the values above the last mark."""
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def pop(self) -> object:
        """Remove and return the last value, of those above the last mark."""
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise PickleRefused('a value is taken from below a mark')
        return self.stack.pop()


Handler = Callable[[Reader, int], int]


def walk(reader: Reader, handlers: Mapping[int, Handler], position: int = 0) -> tuple[object, int]:
    """Return the value of the pickle and the position after it. Raises PickleRefused."""
    begin = position
    try:
        return steps(reader, handlers, position)
    except PickleRefused as error:
        raise PickleRefused(f'the pickle is refused: {error}') from None
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        size = len(reader.view) - begin
        raise PickleRefused(f'the pickle of {size} bytes is damaged') from None


def steps(reader: Reader, handlers: Mapping[int, Handler], position: int) -> tuple[object, int]:
    """Handle the opcodes; the three most frequent ones here, where none of them costs a call."""
    view, stack, memo, budget = reader.view, reader.stack, reader.memo, reader.budget
    check_protocol(view, position)
    for count in range(budget.opcodes_left):
        opcode = view[position]
        if opcode == SHORT_TEXT:
            begin, size = position + 2, view[position + 1]
            position = begin + size
            budget.text_left -= size
            if budget.text_left < 0:
                budget.refuse_text()
            stack.append(str(view[begin:position], 'utf-8'))
        elif opcode == UINT8:
            stack.append(view[position + 1])
            position += 2
        elif opcode == STOP:
            budget.opcodes_left -= count + 1
            return result(reader), position + 1
        else:
            position = handlers.get(opcode, refuse)(reader, position + 1)
        # raises IndexError for a text that was cut off
        if view[position] == MEMOIZE:
            memo[len(memo)] = stack[-1]
            position += 1
    raise PickleRefused(f'it has more than {reader.limits.opcodes} opcodes')


def refuse(reader: Reader, position: int) -> int:
    """Refuse an opcode that is not in the table."""
    opcode = reader.view[position - 1]
    raise PickleRefused(f'opcode 0x{opcode:02x} at byte {position - 1} is not allowed')


def check_protocol(view: memoryview, position: int) -> None:
    """Raise PickleRefused for the text forms of protocol 0 and 1, and for what is not a pickle."""
    if view[position] != 0x80 or not 2 <= view[position + 1] <= 5:
        raise PickleRefused('it is not a pickle of protocol 2 to 5')


def result(reader: Reader) -> object:
    if len(reader.stack) != 1 or reader.marks:
        raise PickleRefused(f'{len(reader.stack)} values are left at its end instead of one')
    return reader.stack.pop()

# SPDX-License-Identifier: Apache-2.0
"""Opcodes that make lists, dicts, tuples and objects of values on the stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lerobot_serve.peer_formats.safe_pickle import value_opcodes
from lerobot_serve.peer_formats.safe_pickle.reader import Handler, Reader
from lerobot_serve.peer_formats.safe_pickle.value_opcodes import is_flat_tuple, SCALARS
from lerobot_serve.peer_formats.safe_pickle.values import (
    Array,
    Dtype,
    Global,
    PickleRefused,
    quoted,
    Record,
)

# a shape, the arguments of an array or of a tensor
TUPLE_ITEMS = 32
# a name on a line of its own, as protocol 2 and 3 write it
NAME_BYTES = 128
PutInto = Callable[[Reader, list[object]], None]


def mark(reader: Reader, position: int) -> int:
    if len(reader.marks) >= reader.limits.marks:
        raise PickleRefused(f'it is nested more than {reader.limits.marks} deep')
    reader.marks.append(len(reader.stack))
    return position


def empty(kind: type[list[object]] | type[dict[str, object]]) -> Handler:
    """Return the handler that makes an empty list or dict."""

    def make(reader: Reader, position: int) -> int:
        reader.push_container(kind())
        return position

    return make


def tuple_of(count: int) -> Handler:
    """Return the handler that makes a tuple of the last values."""

    def make(reader: Reader, position: int) -> int:
        stack = reader.stack
        start = len(stack) - count
        if start < (reader.marks[-1] if reader.marks else 0):
            raise PickleRefused('a tuple takes values from below a mark')
        values = stack[start:]
        del stack[start:]
        push_tuple(reader, values)
        return position

    return make


def push_tuple(reader: Reader, values: list[object]) -> None:
    """Push a tuple; one inside it holds scalars only, so that tuples nest no deeper."""
    if len(values) > TUPLE_ITEMS:
        raise PickleRefused(f'a tuple of {len(values)} items; {TUPLE_ITEMS} are allowed')
    for value in values:
        if type(value) is tuple and not is_flat_tuple(value):
            raise PickleRefused('tuples are nested')
    reader.stack.append(tuple(values))


def last(count: int, put: PutInto) -> Handler:
    """Return the handler that puts the last values into what is before them."""

    def handle(reader: Reader, position: int) -> int:
        values = [reader.pop() for _ in range(count)]
        put(reader, values[::-1])
        return position

    return handle


def marked(put: PutInto) -> Handler:
    """Return the handler that puts the values above the last mark into what is before them."""

    def handle(reader: Reader, position: int) -> int:
        put(reader, reader.pop_mark())
        return position

    return handle


def extend(reader: Reader, values: list[object]) -> None:
    target = reader.stack[-1]
    if type(target) is not list:
        raise PickleRefused('a value is appended to what is not a list')
    target.extend(complete(value) for value in values)


def update(reader: Reader, values: list[object]) -> None:
    target = reader.stack[-1]
    if type(target) is not dict or len(values) % 2:
        raise PickleRefused('pairs are put into what is not a dict')
    pairs = iter(values)
    for key in pairs:
        if type(key) is not str:
            raise PickleRefused(f'a key of a dict is a {type(key).__name__}, not a text')
        target[key] = complete(next(pairs))


def complete(value: object) -> object:
    """Return a value that a list or dict may hold. Raises PickleRefused for all others."""
    kind = type(value)
    if kind in SCALARS or kind is dict or kind is list:
        return value
    if type(value) is Array and value.numbers is not None:
        return value.numbers
    if (type(value) is Record and value.fields is not None) or is_flat_tuple(value):
        return value
    raise PickleRefused(f'a list or dict holds a {kind.__name__}, not complete')


def global_line(reader: Reader, position: int) -> int:
    """Find a name that is written as two lines."""
    lines = []
    for _ in range(2):
        line = bytes(reader.view[position : position + NAME_BYTES]).partition(b'\n')
        if not line[1]:
            raise PickleRefused(f'a name is longer than {NAME_BYTES} bytes')
        lines.append(line[0].decode())
        position += len(line[0]) + 1
    push_global(reader, lines[0], lines[1])
    return position


def stack_global(reader: Reader, position: int) -> int:
    name, module = reader.pop(), reader.pop()
    if type(name) is not str or type(module) is not str:
        raise PickleRefused('a name is not made of two texts')
    push_global(reader, module, name)
    return position


def push_global(reader: Reader, module: str, name: str) -> None:
    known = reader.names.get((module, name))
    if known is None:
        allowed = ', '.join(sorted('.'.join(each) for each in reader.names))
        raise PickleRefused(
            f'it names {quoted(module)}.{quoted(name)}, which is not allowed; allowed: {allowed}'
        )
    reader.stack.append(known)


def reduce(reader: Reader, position: int) -> int:
    arguments, function = reader.pop(), reader.pop()
    if type(function) is not Global or function.call is None or type(arguments) is not tuple:
        raise PickleRefused('it calls what is not to be called')
    reader.stack.append(function.call(arguments, reader.budget))
    return position


def new_object(reader: Reader, position: int) -> int:
    arguments, made = reader.pop(), reader.pop()
    if type(made) is not Global or not made.is_record or arguments != ():
        raise PickleRefused('it makes an object of what is not a record, or with arguments')
    reader.push_container(Record(made.name))
    return position


def build(reader: Reader, position: int) -> int:
    state = reader.pop()
    target = reader.stack[-1]
    if not isinstance(target, (Record, Array, Dtype)):
        raise PickleRefused(f'it sets the state of a {type(target).__name__}')
    target.build(state, reader.budget)
    return position


HANDLERS: Mapping[int, Handler] = {
    **value_opcodes.HANDLERS,
    ord('('): mark,
    ord(']'): empty(list),
    ord('}'): empty(dict),
    ord(')'): value_opcodes.constant(()),
    0x85: tuple_of(1),
    0x86: tuple_of(2),
    0x87: tuple_of(3),
    ord('t'): marked(push_tuple),
    ord('a'): last(1, extend),
    ord('e'): marked(extend),
    ord('s'): last(2, update),
    ord('u'): marked(update),
    ord('c'): global_line,
    0x93: stack_global,
    ord('R'): reduce,
    0x81: new_object,
    ord('b'): build,
}

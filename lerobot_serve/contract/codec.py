# SPDX-License-Identifier: Apache-2.0
"""
Encodes and decodes the classes of `contract.records` as CDR, the byte form of ROS 2 messages.

A class is compiled once, into a list of steps: neighbouring numbers are one step, a text, an array
and another class are one each. Arrays of a decoded message are views of its bytes. Pure; any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
import struct
from typing import Annotated, Any, get_args, get_origin, get_type_hints, NamedTuple, TypeVar

from msgspec import Struct
import numpy as np

from lerobot_serve.contract import records
from lerobot_serve.contract.cdr import CdrReader, CdrWriter, START
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.types import Bytes, Constants

R = TypeVar('R')

# entries of a list without a limit of its own: far above the need of any robot
LIST_LIMIT = 4096
LIMITS: dict[type, int] = {records.CameraImage: 256, records.Extension: 64}
VALUES_LIMIT = 1 << 20
# bytes; of an image, and of another array
IMAGE_LIMIT, BYTES_LIMIT = 64 << 20, 1 << 20
# the first field of each class that a peer or a bag of 0.2.0 does not have
ADDED: dict[type, str] = {records.RoutingDecision: 'split_version'}
EMPTY = struct.Struct('<B')
NUMBERS = (bool, int, float)


def encode(record: Any) -> bytes:
    """Return the CDR bytes. Raises Unencodable."""
    writer = CdrWriter()
    write(writer, record)
    return writer.finish()


def decode(kind: type[R], raw: bytes) -> R:
    """Return the message. Raises Malformed."""
    return read(CdrReader(raw), kind)


# appends the values of its fields
Reader = Callable[[CdrReader, list[Any]], None]
Writer = Callable[[CdrWriter, Any], None]


class CodecStep(NamedTuple):
    """One or more fields of a class."""

    read: Reader
    write: Writer


class Layout(NamedTuple):
    """The steps of a class; `added` are those that an older version does not have."""

    reads: tuple[Reader, ...]
    added: tuple[Reader, ...]
    writes: tuple[Writer, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A field with what its annotation says: its type, and a size or a limit."""

    owner: type
    name: str
    kind: Any
    meta: Any

    @property
    def letter(self) -> str:
        """Of `struct`; empty for what is not a number."""
        return 'B' if _is(self.kind, Constants) else self.meta if self.kind in NUMBERS else ''


def read(reader: CdrReader, kind: type[R]) -> R:
    """Return a message within another one. Raises Malformed."""
    values: list[Any] = []
    layout = _layout_of(kind)
    for read_step in layout.reads:
        read_step(reader, values)
    if layout.added and not reader.is_at_end:
        for read_step in layout.added:
            read_step(reader, values)
    return kind(*values)


def write(writer: CdrWriter, record: Any) -> None:
    """Append a message to another one. Raises Unencodable."""
    for write_step in _layout_of(type(record)).writes:
        write_step(writer, record)


def _layout_of(kind: type) -> Layout:
    found = LAYOUTS.get(kind)
    if found is None:
        found = LAYOUTS[kind] = _compiled(kind)
    return found


def _compiled(kind: Any) -> Layout:
    hints = get_type_hints(kind, localns=dict(vars(kind)), include_extras=True)
    found = [Field(kind, name, *_split(hints[name])) for name in kind.__struct_fields__]
    names = [field.name for field in found]
    first_added = names.index(ADDED[kind]) if kind in ADDED else len(names)
    # ROS has no empty message: it gets one byte
    old = _steps(found[:first_added]) or [NOTHING]
    added = _steps(found[first_added:])
    return Layout(
        tuple(step.read for step in old),
        tuple(step.read for step in added),
        tuple(step.write for step in (*old, *added)),
    )


def _steps(fields: list[Field]) -> list[CodecStep]:
    """Return the steps of fields; neighbouring numbers are one."""
    steps: list[CodecStep] = []
    for is_number, neighbours in groupby(fields, lambda field: bool(field.letter)):
        run = list(neighbours)
        steps += [_numbers(run)] if is_number else map(_step, run)
    return steps


def _split(annotation: Any) -> tuple[Any, Any]:
    """Return the type of a field, and the size or the limit beside it."""
    if get_origin(annotation) is Annotated:
        kind, meta = get_args(annotation)
        return kind, meta
    return annotation, None


def _is(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _numbers(run: list[Field]) -> CodecStep:
    """Return the step of neighbouring numbers: one layout for each place within 8 bytes."""
    layouts = tuple(_packed([field.letter for field in run], phase) for phase in range(8))
    names = [field.name for field in run]
    # place, and the member of each number
    constants = [
        (at - len(run), tuple(map(f.kind.of, range(256))))
        for at, f in enumerate(run)
        if _is(f.kind, Constants)
    ]

    def read_numbers(reader: CdrReader, values: list[Any]) -> None:
        values += reader.unpack(layouts[(reader.position - START) % 8], align=1)
        for at, members in constants:
            values[at] = members[values[at]]

    def write_numbers(writer: CdrWriter, record: Any) -> None:
        values = [getattr(record, name) for name in names]
        try:
            writer.pack(layouts[writer.position % 8], *values, align=1)
        except Unencodable:
            raise _misfit(run, values) from None

    return CodecStep(read_numbers, write_numbers)


def _packed(letters: list[str], phase: int) -> struct.Struct:
    """Return the layout of numbers that begin at a place, each at a multiple of its size."""
    at, layout = phase, '<'
    for letter in letters:
        size = struct.calcsize(f'<{letter}')
        gap = -at % size
        layout += 'x' * gap + letter
        at += gap + size
    return struct.Struct(layout)


def _misfit(run: list[Field], values: list[Any]) -> Unencodable:
    """Return the error of the first number that does not fit its field."""
    for field, value in zip(run, values, strict=True):
        try:
            struct.pack(f'<{field.letter}', value)
        except (struct.error, OverflowError) as error:
            return Unencodable(f'{field.name}: {value!r} does not fit ({error})')
    return Unencodable(f'{values} do not fit')


def _step(field: Field) -> CodecStep:
    """Return the step of a field that is not a number."""
    name, (read_one, write_one) = field.name, _value(field)
    return CodecStep(read_one, lambda writer, record: write_one(writer, getattr(record, name)))


def _value(field: Field) -> tuple[Reader, Writer]:
    """Return what reads and what writes one value."""
    kind, name = field.kind, field.name
    if kind is str:
        return _text(field.meta, name)
    if get_origin(kind) is tuple:
        return _list(field, *_split(get_args(kind)[0]))
    if _is(kind, Struct):
        return lambda reader, values: values.append(read(reader, kind)), write
    if kind == Bytes:
        of_class = IMAGE_LIMIT if field.owner is records.CameraImage else BYTES_LIMIT
        limit = field.meta or of_class
        return (
            lambda reader, values: values.append(reader.block(limit, name)),
            lambda writer, value: writer.block(value, limit, name),
        )
    element = np.dtype(get_args(get_args(kind)[1])[0]).newbyteorder('<')
    return (
        lambda reader, values: values.append(reader.array(element, VALUES_LIMIT, name)),
        lambda writer, value: writer.array(value, element, VALUES_LIMIT, name),
    )


def _text(limit: int, name: str) -> tuple[Reader, Writer]:
    def write_text(writer: CdrWriter, text: str) -> None:
        try:
            writer.string(text, limit)
        except Unencodable as error:
            raise Unencodable(f'{name}: {error}') from None

    return lambda reader, values: values.append(reader.string(limit, name)), write_text


def _list(field: Field, kind: Any, meta: Any) -> tuple[Reader, Writer]:
    """Return what reads and what writes a list of texts or of messages."""
    limit, name = field.meta or LIMITS.get(kind, LIST_LIMIT), field.name
    read_one, write_one = _value(Field(field.owner, name, kind, meta))

    def read_list(reader: CdrReader, values: list[Any]) -> None:
        entries: list[Any] = []
        for _ in range(reader.count(limit, name)):
            read_one(reader, entries)
        values.append(tuple(entries))

    def write_list(writer: CdrWriter, values: Sequence[Any]) -> None:
        writer.count(len(values), limit, name)
        for value in values:
            write_one(writer, value)

    return read_list, write_list


def _skip(reader: CdrReader, _: list[Any]) -> None:
    reader.unpack(EMPTY, align=1)


NOTHING = CodecStep(_skip, lambda writer, _: writer.pack(EMPTY, 0, align=1))
# of the classes that were used; two threads that compile one get the same
LAYOUTS: dict[type, Layout] = {}

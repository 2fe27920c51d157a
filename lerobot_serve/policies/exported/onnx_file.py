# SPDX-License-Identifier: Apache-2.0
"""
Parse an ONNX file field by field before onnxruntime reads it. No torch, any thread.

A file is refused for each field, operator and type that is not in `onnx_schema`. A singular field
must not occur twice, since two readers could then read different models from one file. Sizes are
compared with the size of the file, and external tensors must be files of the same folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import math
from pathlib import Path
import re

from lerobot_serve.policies.exported.onnx_schema import (
    ATTRIBUTE,
    BYTES,
    FieldValue,
    FIXED32,
    FIXED64,
    GRAPH_FIELDS,
    KEY_VALUE,
    MessageSchema,
    MODEL,
    NODE,
    OPERATORS,
    OPSET,
    PACKABLE,
    TENSOR_FIELDS,
    TENSOR_TYPE,
    TYPE_FIELDS,
    VALUE,
    VARINT,
)
from lerobot_serve.policies.exported.program_archive import UnsafeProgram

MessageFields = dict[int, list[FieldValue]]
FILE_LIMIT_BYTES, NODE_LIMIT, DEPTH_LIMIT, RANK_LIMIT = 2 << 30, 100_000, 4, 8
NAME_LIMIT_BYTES = 4096
# as torch names it; files of this name count as part of a policy
LOCATION = re.compile(r'[A-Za-z0-9_-][\w.-]*\.data', re.ASCII)
# element type -> its size in bytes, and the field that may hold values instead of raw_data
ITEM_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2}
DOMAINS = {b'', b'ai.onnx'}


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A tensor whose values are in another file of the folder."""

    name: str
    location: str
    offset: int
    size_bytes: int
    element_type: int
    dims: tuple[int, ...]


@dataclass(slots=True)
class OnnxContents:
    """The contents of a file that loading depends on."""

    nodes: int = 0
    external: list[ExternalTensor] = field(default_factory=list)


def check_model(data: memoryview) -> OnnxContents:
    """Return the contents of a file. Raises UnsafeProgram; its text continues "it ..."."""
    contents = OnnxContents()
    try:
        model = _fields(data, MODEL)
        for opset in _blocks(model, 8):
            _opset(opset)
        graphs = _blocks(model, 7)
        if len(graphs) != 1:
            raise UnsafeProgram('has no graph')
        _graph(graphs[0], contents, 0)
    except (IndexError, ValueError) as error:
        raise UnsafeProgram(f'is not a readable ONNX file ({error})') from error
    return contents


def external_bytes(folder: Path, external: list[ExternalTensor]) -> int:
    """
    Return the bytes of tensors in other files. Raises UnsafeProgram for one outside the folder.
    """
    for each in external:
        file = folder / each.location
        if file.is_symlink() or not file.is_file():
            raise UnsafeProgram(f'needs {each.location!r}, which is not a file of its folder')
        if each.offset + each.size_bytes > file.stat().st_size:
            raise UnsafeProgram(f'needs more bytes of {each.location!r} than the file has')
    return sum(each.size_bytes for each in external)


def _fields(data: memoryview, shape: MessageSchema) -> MessageFields:
    """Return the fields of a message by number. Raises UnsafeProgram, IndexError, ValueError."""
    found: MessageFields = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if number not in shape:
            raise UnsafeProgram(f'has the field {number}, which is not allowed')
        name, wanted, repeated = shape[number]
        if number in found and not repeated:
            raise UnsafeProgram(f'has {name} twice')
        if wire != wanted and not (name in PACKABLE and wire in (VARINT, FIXED32, FIXED64)):
            raise UnsafeProgram(f'has {name} in another form')
        value, position = _value(data, position, wire)
        found.setdefault(number, []).append(value)
    return found


def _value(data: memoryview, position: int, wire: int) -> tuple[FieldValue, int]:
    if wire == VARINT:
        return _varint(data, position)
    size = 4 if wire == FIXED32 else 8
    if wire == BYTES:
        size, position = _varint(data, position)
    if position + size > len(data):
        raise ValueError('truncated')
    return data[position : position + size], position + size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError('a number has no end')


def _numbers(values: list[FieldValue], name: str) -> Iterator[int]:
    """Yield the whole numbers of a field, packed or repeated."""
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            yield number


def _blocks(fields: MessageFields, number: int) -> list[memoryview]:
    """Return the values of a field of bytes. Raises UnsafeProgram for a number."""
    values = fields.get(number, [])
    blocks = [value for value in values if not isinstance(value, int)]
    if len(blocks) < len(values):
        raise UnsafeProgram(f'has a number in the field {number}, which holds bytes')
    return blocks


def _number(fields: MessageFields, number: int) -> int:
    """Return the value of a field of one number, 0 if missing. Raises UnsafeProgram."""
    value = fields.get(number, [0])[0]
    if not isinstance(value, int):
        raise UnsafeProgram(f'has bytes in the field {number}, which holds a number')
    return value


def _short_bytes(fields: MessageFields, number: int) -> bytes:
    """Return a short text, empty if missing."""
    values = _blocks(fields, number)
    if values and len(values[0]) > NAME_LIMIT_BYTES:
        raise UnsafeProgram('has a name without bound')
    return bytes(values[0]) if values else b''


def _opset(data: memoryview) -> None:
    fields = _fields(data, OPSET)
    if (domain := _short_bytes(fields, 1)) not in DOMAINS:
        raise UnsafeProgram(
            f'needs operators of {domain!r:.60}; only those of ai.onnx are allowed'
        )


def _graph(data: memoryview, contents: OnnxContents, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise UnsafeProgram(f'has graphs nested deeper than {DEPTH_LIMIT}')
    fields = _fields(data, GRAPH_FIELDS)
    for initializer in _blocks(fields, 5):
        _tensor(initializer, contents, may_be_external=depth == 0)
    for number in (11, 12, 13):
        for value in _blocks(fields, number):
            _type(value)
    for node in _blocks(fields, 1):
        _node(node, contents, depth)


def _node(data: memoryview, contents: OnnxContents, depth: int) -> None:
    contents.nodes += 1
    if contents.nodes > NODE_LIMIT:
        raise UnsafeProgram(f'has more than {NODE_LIMIT} nodes')
    fields = _fields(data, NODE)
    operator, domain = _short_bytes(fields, 4), _short_bytes(fields, 7)
    if domain not in DOMAINS or operator.decode('ascii', 'replace') not in OPERATORS:
        raise UnsafeProgram(
            f'uses the operator {(domain + b"." + operator).decode("ascii", "replace")!r:.80}'
        )
    for attribute in _blocks(fields, 5):
        held = _fields(attribute, ATTRIBUTE)
        for tensor in _blocks(held, 5):
            _tensor(tensor, contents, may_be_external=False)
        for graph in _blocks(held, 6):
            _graph(graph, contents, depth + 1)


def _type(data: memoryview) -> None:
    for described in _blocks(_fields(data, VALUE), 2):
        for tensor in _blocks(_fields(described, TYPE_FIELDS), 1):
            element = _number(_fields(tensor, TENSOR_TYPE), 1)
            if element not in ITEM_BYTES:
                raise UnsafeProgram(f'has values of the type {element}, which is no plain number')


def _tensor(data: memoryview, contents: OnnxContents, *, may_be_external: bool) -> None:
    fields = _fields(data, TENSOR_FIELDS)
    dims = tuple(_numbers(fields.get(1, []), 'dims'))
    element = _number(fields, 2)
    if element not in ITEM_BYTES:
        raise UnsafeProgram(f'has a tensor of the type {element}, which is no plain number')
    if len(dims) > RANK_LIMIT or any(not 0 <= size < 1 << 40 for size in dims):
        raise UnsafeProgram(f'has a tensor of the shape {dims!r:.60}')
    size_bytes = math.prod(dims) * ITEM_BYTES[element]
    raw = _blocks(fields, 9)
    if _number(fields, 14):
        if not may_be_external or raw:
            raise UnsafeProgram('has a tensor in another file where it must be in this one')
        contents.external.append(_external(fields, size_bytes, element, dims))
    elif raw and len(raw[0]) != size_bytes:
        raise UnsafeProgram(f'has a tensor of {len(raw[0])} bytes that should have {size_bytes}')
    elif not raw and _value_bytes(fields) < math.prod(dims):
        raise UnsafeProgram('has a tensor with fewer values than its shape needs')


def _value_bytes(fields: MessageFields) -> int:
    """Return an upper bound of the number of values: the bytes of all value fields."""
    return sum(
        1 if isinstance(value, int) else len(value)
        for number in (4, 5, 7, 10, 11)
        for value in fields.get(number, [])
    )


def _external(
    fields: MessageFields, size_bytes: int, element: int, dims: tuple[int, ...]
) -> ExternalTensor:
    entries = {}
    for entry in _blocks(fields, 13):
        held = _fields(entry, KEY_VALUE)
        entries[_short_bytes(held, 1)] = _short_bytes(held, 2)
    location = entries.get(b'location', b'').decode('ascii', 'replace')
    if not LOCATION.fullmatch(location) or entries.keys() - EXTERNAL_KEYS:
        raise UnsafeProgram(
            f'has a tensor in the file {location!r:.80}, which must be a plain name with .data at '
            'its end'
        )
    offset, length = (int(entries.get(key, default)) for key, default in EXTERNAL_DEFAULTS)
    if offset < 0 or length not in (-1, size_bytes):
        raise UnsafeProgram(
            f'has a tensor of {length} bytes in {location!r} that needs {size_bytes}'
        )
    name = _short_bytes(fields, 8).decode('utf-8')
    return ExternalTensor(name, location, offset, size_bytes, element, dims)


EXTERNAL_KEYS = {b'location', b'offset', b'length', b'checksum'}
EXTERNAL_DEFAULTS = ((b'offset', b'0'), (b'length', b'-1'))

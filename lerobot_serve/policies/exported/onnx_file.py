# SPDX-License-Identifier: Apache-2.0
"""
Parse an ONNX file field by field, and write what was read for onnxruntime. No torch, any thread.

A file is refused for each field, operator and type that is not in `onnx_schema`. A singular field
must not occur twice, since two readers could then read different models from one file. Sizes are
compared with the size of the file, and external tensors must be files of the same folder.
onnxruntime never gets the bytes of the file: another reader could find another format in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import math
from pathlib import Path
import re
from typing import Literal

from lerobot_serve.peer_formats.lerobot_messages import varint
from lerobot_serve.policies.exported.onnx_schema import (
    ATTRIBUTE,
    BYTES,
    DIMENSION,
    FieldValue,
    FIXED32,
    FLOAT_TYPES,
    GRAPH_FIELDS,
    GraphValues,
    KEY_VALUE,
    MessageSchema,
    MODEL,
    NODE,
    OPERATORS,
    OPSET,
    PACKABLE,
    Parts,
    TENSOR_FIELDS,
    TENSOR_SHAPE,
    TENSOR_TYPE,
    TEXTS,
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
# of a constant that may divide: of int32 and int64
DIVISOR_FORMATS: dict[int, Literal['i', 'q']] = {6: 'i', 7: 'q'}
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
    """The contents of a file that loading depends on; `data` is the model as it was read."""

    data: bytes = b''
    nodes: int = 0
    external: list[ExternalTensor] = field(default_factory=list)


def checked_model(data: memoryview) -> OnnxContents:
    """Return the contents of a file. Raises UnsafeProgram; its text continues "it ..."."""
    contents = OnnxContents()
    try:
        model = _fields(data, MODEL)
        graphs = _blocks(model, 7)
        if len(graphs) != 1:
            raise UnsafeProgram('has no graph')
        parts = {
            7: [_graph(graphs[0], contents, 0, None)],
            8: [_opset(opset) for opset in _blocks(model, 8)],
        }
        contents.data = b''.join(_written(model, MODEL, parts))
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
        if wire not in (wanted, PACKABLE.get(name)):
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
        if byte < 0x80 and value < 1 << 64:
            return value, position
    raise ValueError('a number has no end')


def _written(fields: MessageFields, shape: MessageSchema, parts: dict[int, list[Parts]]) -> Parts:
    """Return a message of the fields in their order; `parts` are the messages within it."""
    written: Parts = []
    for number in sorted(fields):
        name, wire, _ = shape[number]
        if name in TEXTS:
            continue
        if number in parts:
            for inner in parts[number]:
                written += [_key(number, BYTES), varint(sum(map(len, inner))), *inner]
            continue
        for value in fields[number]:
            if isinstance(value, int):
                written += [_key(number, VARINT), varint(value)]
            elif wire == BYTES:
                # of numbers too: one that was not packed is a pack of one
                written += [_key(number, BYTES), varint(len(value)), value]
            else:
                written += [_key(number, wire), value]
    return written


def _key(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def _numbers(values: list[FieldValue]) -> Iterator[int]:
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


def _opset(data: memoryview) -> Parts:
    fields = _fields(data, OPSET)
    if (domain := _short_bytes(fields, 1)) not in DOMAINS:
        raise UnsafeProgram(
            f'needs operators of {domain!r:.60}; only those of ai.onnx are allowed'
        )
    return _written(fields, OPSET, {})


def _graph(
    data: memoryview, contents: OnnxContents, depth: int, outer: GraphValues | None
) -> Parts:
    if depth > DEPTH_LIMIT:
        raise UnsafeProgram(f'has graphs nested deeper than {DEPTH_LIMIT}')
    fields = _fields(data, GRAPH_FIELDS)
    tensors = [_tensor(each, contents, may_be_external=depth == 0) for each in _blocks(fields, 5)]
    infos = {number: list(map(_value_info, _blocks(fields, number))) for number in (11, 12, 13)}
    values = GraphValues(outer)
    for each in _blocks(fields, 5):
        name = _short_bytes(_fields(each, TENSOR_FIELDS), 8)
        values.add_constant(name, divides=_may_divide(each))
    for each in (*_blocks(fields, 12), *_blocks(fields, 13)):
        values.add_type(*_said_type(each))
    nodes = [_node(each, contents, depth, values) for each in _blocks(fields, 1)]
    return _written(fields, GRAPH_FIELDS, {1: nodes, 5: tensors, **infos})


def _said_type(data: memoryview) -> tuple[bytes, int]:
    """Return the name of a checked value and the type of its elements, 0 if that is not said."""
    fields = _fields(data, VALUE)
    kinds = [_fields(kind, TYPE_FIELDS) for kind in _blocks(fields, 2)]
    tensors = [_fields(each, TENSOR_TYPE) for kind in kinds for each in _blocks(kind, 1)]
    return _short_bytes(fields, 1), _number(tensors[0], 1) if tensors else 0


def _may_divide(data: memoryview) -> bool:
    """Return whether a checked tensor is of floats, or of whole numbers without 0 and -1."""
    fields = _fields(data, TENSOR_FIELDS)
    element, raw = _number(fields, 2), _blocks(fields, 9)
    if element in FLOAT_TYPES:
        return True
    if not raw or element not in DIVISOR_FORMATS:
        return False
    numbers = raw[0].cast(DIVISOR_FORMATS[element])
    return 0 not in numbers and -1 not in numbers


def _node(data: memoryview, contents: OnnxContents, depth: int, values: GraphValues) -> Parts:
    contents.nodes += 1
    if contents.nodes > NODE_LIMIT:
        raise UnsafeProgram(f'has more than {NODE_LIMIT} nodes')
    fields = _fields(data, NODE)
    operator, domain = _short_bytes(fields, 4), _short_bytes(fields, 7)
    if domain not in DOMAINS or operator.decode('ascii', 'replace') not in OPERATORS:
        raise UnsafeProgram(
            f'uses the operator {(domain + b"." + operator).decode("ascii", "replace")!r:.80}'
        )
    attributes = [_attribute(each, contents, depth, values) for each in _blocks(fields, 5)]
    inputs, outputs = (list(map(bytes, _blocks(fields, number))) for number in (1, 2))
    values.add_node(operator, inputs, outputs)
    if operator == b'Constant':
        found = [_fields(each, ATTRIBUTE) for each in _blocks(fields, 5)]
        constants = [tensor for attribute in found for tensor in _blocks(attribute, 5)]
        for name in outputs:
            values.add_constant(name, divides=any(map(_may_divide, constants)))
    return _written(fields, NODE, {5: attributes})


def _attribute(data: memoryview, contents: OnnxContents, depth: int, values: GraphValues) -> Parts:
    fields = _fields(data, ATTRIBUTE)
    tensors = [_tensor(each, contents, may_be_external=False) for each in _blocks(fields, 5)]
    graphs = [_graph(each, contents, depth + 1, values) for each in _blocks(fields, 6)]
    return _written(fields, ATTRIBUTE, {5: tensors, 6: graphs})


def _value_info(data: memoryview) -> Parts:
    fields = _fields(data, VALUE)
    return _written(fields, VALUE, {2: list(map(_type, _blocks(fields, 2)))})


def _type(data: memoryview) -> Parts:
    fields = _fields(data, TYPE_FIELDS)
    return _written(fields, TYPE_FIELDS, {1: list(map(_tensor_type, _blocks(fields, 1)))})


def _tensor_type(data: memoryview) -> Parts:
    fields = _fields(data, TENSOR_TYPE)
    element = _number(fields, 1)
    if element not in ITEM_BYTES:
        raise UnsafeProgram(f'has values of the type {element}, which is not a plain number')
    return _written(fields, TENSOR_TYPE, {2: list(map(_shape, _blocks(fields, 2)))})


def _shape(data: memoryview) -> Parts:
    fields = _fields(data, TENSOR_SHAPE)
    dimensions = [_written(_fields(each, DIMENSION), DIMENSION, {}) for each in _blocks(fields, 1)]
    return _written(fields, TENSOR_SHAPE, {1: dimensions})


def _tensor(data: memoryview, contents: OnnxContents, *, may_be_external: bool) -> Parts:
    fields = _fields(data, TENSOR_FIELDS)
    dims = tuple(_numbers(fields.get(1, [])))
    element = _number(fields, 2)
    if element not in ITEM_BYTES:
        raise UnsafeProgram(f'has a tensor of the type {element}, which is not a plain number')
    if len(dims) > RANK_LIMIT or any(not 0 <= size < 1 << 40 for size in dims):
        raise UnsafeProgram(f'has a tensor of the shape {dims!r:.60}')
    size_bytes = math.prod(dims) * ITEM_BYTES[element]
    raw = _blocks(fields, 9)
    entries = [_fields(each, KEY_VALUE) for each in _blocks(fields, 13)]
    if _number(fields, 14):
        if not may_be_external or raw:
            raise UnsafeProgram('has a tensor in another file where it must be in this one')
        contents.external.append(_external(fields, entries, size_bytes, element, dims))
    elif raw and len(raw[0]) != size_bytes:
        raise UnsafeProgram(f'has a tensor of {len(raw[0])} bytes that should have {size_bytes}')
    elif not raw and _value_bytes(fields) < math.prod(dims):
        raise UnsafeProgram('has a tensor with fewer values than its shape needs')
    return _written(
        fields, TENSOR_FIELDS, {13: [_written(each, KEY_VALUE, {}) for each in entries]}
    )


def _value_bytes(fields: MessageFields) -> int:
    """Return an upper bound of the number of values: the bytes of all value fields."""
    return sum(
        1 if isinstance(value, int) else len(value)
        for number in (4, 5, 7, 10, 11)
        for value in fields.get(number, [])
    )


def _external(
    fields: MessageFields,
    found: list[MessageFields],
    size_bytes: int,
    element: int,
    dims: tuple[int, ...],
) -> ExternalTensor:
    entries = {_short_bytes(entry, 1): _short_bytes(entry, 2) for entry in found}
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

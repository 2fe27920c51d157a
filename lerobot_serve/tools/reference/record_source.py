# SPDX-License-Identifier: Apache-2.0
"""
The source of lerobot_serve/contract/records.py: a class for each message, from its interface file.

Source, and not classes that are made at import: mypy and editors see it, and an installation
without ROS has no interface files. Pure; one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
import re

from lerobot_serve.tools.reference.interface_files import Interface, InterfaceEntry, Part, read

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""
The messages of the contract as plain objects: a class for each .msg file and for each part of a
.srv or .action file, with its fields. `make docs` writes this file from the interface files.

`contract.codec` encodes and decodes them. Immutable; any thread.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Annotated

from msgspec import Struct
import numpy as np

from lerobot_serve.arrays import Float32Array, Int64Array
from lerobot_serve.contract.types import (
    Bool,
    Bytes,
    Constants,
    Float32,
    Float64,
    Int32,
    Int64,
    KeyValue,
    no_values,
    Time,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
'''
# name of the class of each part: that of the file, and this
SUFFIXES = {'msg': ('',), 'srv': ('Request', 'Response'), 'action': ('Goal', 'Result', 'Feedback')}
# type of a field -> annotation, default
PLAIN = {
    'bool': ('Bool', 'False'),
    **{kind.lower(): (kind, '0') for kind in ('UInt8', 'UInt16', 'UInt32', 'UInt64')},
    **{kind.lower(): (kind, '0') for kind in ('Int32', 'Int64')},
    **{kind.lower(): (kind, '0.0') for kind in ('Float32', 'Float64')},
    'uint8[]': ('Bytes', "b''"),
    'float32[]': ('Float32Array', 'no_values(np.float32)'),
    'int64[]': ('Int64Array', 'no_values(np.int64)'),
}
# arrays, which do not compare as one value; bytes do
ARRAYS = {'float32[]', 'int64[]'}


def records_source(folder: Path) -> str:
    """Return the module for the interface files below `folder`."""
    interfaces = read(folder)
    classes = [
        _class(interface, suffix, part)
        for kind, found in (interfaces | {'msg': _parts_first(interfaces['msg'])}).items()
        for interface in found
        for suffix, part in zip(SUFFIXES[kind], interface.parts, strict=True)
    ]
    return '\n\n'.join([HEAD, *classes])


def _parts_first(messages: list[Interface]) -> list[Interface]:
    """Return each message after those that it contains: its defaults are made of their classes."""
    of_name = {each.name: each for each in sorted(messages, key=lambda each: each.name)}
    parts = {
        name: [_class_name(entry.type) for entry in part.entries]
        + [_owner(entry, part).rpartition('.')[0] for entry in part.entries]
        for name, each in of_name.items()
        for part in each.parts
    }
    return [of_name[name] for name in TopologicalSorter(parts).static_order() if name in of_name]


def _class(interface: Interface, suffix: str, part: Part) -> str:
    fields = [entry for entry in part.entries if not entry.value]
    compared = '' if ARRAYS.isdisjoint(entry.type for entry in fields) else ', eq=False'
    about = f'{suffix} of {interface.name}' if suffix else interface.about.partition('.')[0]
    lines = [
        f'class {interface.name}{suffix}(Struct, frozen=True{compared}):',
        f'    """{about}."""',
        '',
        *_codes(part),
        *(_field(entry, part) for entry in fields),
    ]
    return '\n'.join(lines).rstrip() + '\n'


def _owner(entry: InterfaceEntry, part: Part) -> str:
    """Return the class of the constants that a field takes; empty for a number."""
    if entry.type != 'uint8' or entry.name == 'flags':
        return ''
    if entry.name in part.groups:
        return _code_name(entry.name)
    other = re.search(r'\b([A-Z]\w+)\.[A-Z]', entry.text)
    return f'{other[1]}.{_code_name(entry.name)}' if other else ''


def _codes(part: Part) -> Iterator[str]:
    """Yield a class for the constants of each field."""
    for name in part.groups:
        constants = [entry for entry in part.entries if entry.of == name]
        prefix = f'{_code_name(name).upper()}_'
        if not all(entry.name.startswith(prefix) for entry in constants):
            prefix = ''
        base = 'IntFlag' if name == 'flags' else 'Constants'
        yield f'    class {_code_name(name)}({base}):'
        yield from ['        NONE = 0'] if base == 'IntFlag' else []
        yield from (f'        {e.name.removeprefix(prefix)} = {e.value}' for e in constants)
        yield ''


def _code_name(field: str) -> str:
    return 'Flag' if field == 'flags' else ''.join(map(str.capitalize, field.split('_')))


def _class_name(kind: str) -> str:
    return kind.partition('[')[0].rpartition('/')[2]


def _field(entry: InterfaceEntry, part: Part) -> str:
    kind, many, bound = entry.type.partition('[')
    if owner := _owner(entry, part):
        annotation, default = owner, f'{owner}(0)'
    elif entry.type in PLAIN:
        annotation, default = PLAIN[entry.type]
    else:
        is_text = kind == 'string'
        annotation = f'Annotated[str, {entry.limit}]' if is_text else _class_name(kind)
        default = "''" if is_text else f'{annotation}()'
        if many:
            annotation, default = f'tuple[{annotation}, ...]', '()'
            limit = bound.strip('<=]')
            annotation = f'Annotated[{annotation}, {limit}]' if limit else annotation
    return f'    {entry.name}: {annotation} = {entry.default or default}'

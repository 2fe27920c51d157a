# SPDX-License-Identifier: Apache-2.0
"""
The bytes of every message, kept in test/golden so that no change of the contract goes unnoticed.

After a change that is meant:

    python3 .ci/workspace.py sh -c 'cd test && python -m support.contract.golden --write'

and review what git then shows: each changed line is a robot or a server that stops understanding.
"""

from __future__ import annotations

import importlib
import itertools
import sys

from rosidl_parser.definition import (
    AbstractNestedType,
    AbstractString,
    BasicType,
    NamespacedType,
)

from support.contract.cdr_walk import Walk
from support.paths import REPOSITORY

ROOT = REPOSITORY
FOLDER = ROOT / 'test' / 'golden'
INTERFACES = ROOT / 'lerobot_serve_interfaces'
PARTS = {'msg': [''], 'srv': ['Request', 'Response'], 'action': ['Goal', 'Result', 'Feedback']}
ENTRIES = 2
# what must fit together, or no decoder would accept the example
SENSIBLE = {
    ('ActionArray', 'rows'): 1,
    ('ActionArray', 'columns'): ENTRIES,
    ('Observation', 'observation_steps'): ENTRIES,
}
WRITE = "python3 .ci/workspace.py sh -c 'cd test && python -m support.contract.golden --write'"
HOW = f'if it is meant: {WRITE}'


def message_types() -> dict[str, type]:
    """Return every class that the interface files make, by the name of its golden file."""
    found = {}
    for folder, parts in PARTS.items():
        module = importlib.import_module(f'lerobot_serve_interfaces.{folder}')
        for file in sorted((INTERFACES / folder).glob(f'*.{folder}')):
            kind = getattr(module, file.stem)
            for part in parts:
                found[f'{file.stem}_{part}'.rstrip('_')] = getattr(kind, part) if part else kind
    return found


def filled(kind: type, first: int = 1) -> object:
    """Return a message in which every field has a value that no other field has."""
    return _fill(kind, itertools.count(first))


def _fill(kind: type, numbers: itertools.count) -> object:
    message = kind()
    names = kind.get_fields_and_field_types()
    for name, field in zip(names, kind.SLOT_TYPES, strict=True):
        value = _value(field, numbers)
        setattr(message, name, SENSIBLE.get((kind.__name__, name), value))
    return message


def _value(kind: object, numbers: itertools.count) -> object:
    if isinstance(kind, NamespacedType):
        module = importlib.import_module('.'.join(kind.namespaces))
        return _fill(getattr(module, kind.name), numbers)
    if isinstance(kind, AbstractNestedType):
        return [_value(kind.value_type, numbers) for _ in range(ENTRIES)]
    number = next(numbers)
    if isinstance(kind, AbstractString):
        return f's{number}'
    assert isinstance(kind, BasicType)
    return _number(kind.typename, number)


def _number(typename: str, number: int) -> bool | int | float:
    """Return a value that would look different were it wider, narrower or turned around."""
    assert number < 128, 'a message has become too large for one byte to number its fields'
    if typename == 'boolean':
        return True
    if typename in ('float', 'double'):
        return number + 0.5
    bits = int(typename.lstrip('uint'))
    return number + ((number ^ 0x55) << (bits - 8)) if bits > 8 else number


def read(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f'{name}.hex').read_text())


def write(name: str, data: bytes) -> None:
    lines = [data[at : at + 16].hex(' ') for at in range(0, len(data), 16)]
    (FOLDER / f'{name}.hex').write_text('\n'.join(lines) + '\n')


def difference(name: str, expected: bytes, walk: Walk, actual: bytes) -> str:
    """Return where two byte forms of one message part, in words; nothing when they are equal."""
    if expected == actual:
        return ''
    pairs = itertools.zip_longest(expected, actual)
    at = next(index for index, (old, new) in enumerate(pairs) if old != new)
    return (
        f'{name} is no longer what was agreed: byte {at}, in or before {walk.field_at(at)}, '
        f'was {expected[at : at + 8].hex(" ") or "absent"} and is '
        f'{actual[at : at + 8].hex(" ") or "absent"}; {HOW}'
    )


def main(arguments: list[str]) -> int:
    if arguments != ['--write']:
        print(__doc__)
        return 2
    FOLDER.mkdir(exist_ok=True)
    kinds = message_types()
    for file in FOLDER.glob('*.hex'):
        if file.stem not in kinds:
            file.unlink()
    for name, kind in kinds.items():
        write(name, Walk(filled(kind)).data)
    print(f'{len(kinds)} files in {FOLDER.relative_to(ROOT)}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""
Builds the definition of a type: its .msg file and those of all types it refers to. The definition
of a service event, which has no file, is built from its .srv file.

Each referenced type follows a line of 80 equals signs and its name. With this text a reader can
decode the messages of a bag without the packages. Reads files; any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import re

ENCODING = 'ros2msg'
UNKNOWN = 'unknown'
SEPARATOR = '=' * 80
# names of a service event and of its halves; names of messages have no underscore
EVENT = 'Event'
HALVES = ('Request', 'Response')
PRIMITIVE = frozenset(
    (
        *('bool', 'byte', 'char', 'string', 'wstring', 'float32', 'float64'),
        *(f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)),
    )
)
# type, bound of a string, array; name; a constant continues with =
FIELD = re.compile(
    r'\s*([A-Za-z][A-Za-z0-9_/]*)(<=\d+)?(\[[^\]]*\])?\s+[A-Za-z]\w*\s*(?P<rest>.*)'
)

FindShare = Callable[[str], Path]


def type_definition(type_name: str, find_share: FindShare) -> tuple[str, str]:
    """
    Return the encoding and the text of a type such as std_msgs/msg/String, or of the events of a
    service such as std_srvs/srv/Empty_Event.

    `find_share` returns the share folder of a package and raises LookupError if it is not
    installed. A missing type has the encoding UNKNOWN and no text.
    """
    try:
        package, _, name = type_name.split('/')
        return ENCODING, _full_definition(f'{package}/{name}', find_share)
    except (LookupError, ValueError, OSError):
        return UNKNOWN, ''


def _full_definition(root: str, find_share: FindShare) -> str:
    text = _read(root, find_share)
    parts, seen = [text], {root}
    # depth first: a type precedes the types it refers to
    waiting = referenced_types(text, root)[::-1]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        text = _read(name, find_share)
        parts.append(f'{SEPARATOR}\nMSG: {name}\n{text}')
        waiting += referenced_types(text, name)[::-1]
    return '\n'.join(parts)


def _read(name: str, find_share: FindShare) -> str:
    package, _, kind = name.partition('/')
    service, _, part = kind.rpartition('_')
    if part == EVENT:
        halves = [f'{service}_{half}[<=1] {half.lower()}\n' for half in HALVES]
        return ''.join(('service_msgs/ServiceEventInfo info\n', *halves))
    if part in HALVES:
        text = (find_share(package) / 'srv' / f'{service}.srv').read_text()
        return re.split(r'(?m)^---\s*$\n?', text, maxsplit=1)[HALVES.index(part)]
    return (find_share(package) / 'msg' / f'{kind}.msg').read_text()


def referenced_types(text: str, of: str) -> list[str]:
    """Return the types, as package/Name, of the fields of a .msg file; `of` is its own name."""
    names = set()
    for line in text.splitlines():
        match = FIELD.match(line.partition('#')[0])
        if match and match[1] not in PRIMITIVE and not match['rest'].startswith('='):
            package, _, kind = match[1].rpartition('/')
            package = package.partition('/')[0] or of.partition('/')[0]
            names.add(f'{package}/{kind}')
    return sorted(names)

# SPDX-License-Identifier: Apache-2.0
"""
The interface files (.msg, .srv, .action) as a page of the reference. Plain; one thread.

A comment describes the line below it; the first block of a file, below its licence, describes the
file. A comment `values of NAME` or `bits of NAME` begins the constants of that field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
import re

from lerobot_serve.tools.reference.node_endpoints import (
    Endpoint,
    INTERFACE_PACKAGE,
    NODE_ENDPOINTS,
)

LICENCE = re.compile(r'\A# SPDX-License-Identifier: .*\n+')
LINE = re.compile(r'([\w/]+)(?:<=(\d+))?(\[(?:<=)?\d*\])?\s+(\w+)(?:\s*=\s*(\S+)|\s+(\d+))?')
VALUES = re.compile(r'(?:values|bits) of (\w+):? ?(.*)')
# folder -> heading, and titles of the parts of a file, which lines --- separate
KINDS = {
    'msg': ('Messages', ('',)),
    'srv': ('Services', ('Request', 'Reply')),
    'action': ('Actions', ('Goal', 'Result', 'Feedback')),
}


@dataclass(frozen=True, slots=True)
class InterfaceEntry:
    """A field, or with a `value` a constant `of` a field."""

    name: str
    type: str
    # bytes of a text; 0 for what has no limit
    limit: int = 0
    text: str = ''
    value: str = ''
    of: str = ''
    default: str = ''

    @property
    def bound(self) -> str:
        """The limit in words."""
        each = 'each ' if '[' in self.type else ''
        return f'{each}at most {self.limit} bytes' if self.limit else ''


@dataclass(slots=True)
class Part:
    """The fields between two lines ---; `groups` describes the constants of some fields."""

    entries: list[InterfaceEntry] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Interface:
    """One file."""

    name: str
    about: str
    parts: list[Part]

    @property
    def used(self) -> set[str]:
        """The types of its fields, without the ends of lists."""
        return {e.type.partition('[')[0] for part in self.parts for e in part.entries}


def read(folder: Path) -> dict[str, list[Interface]]:
    """Return the interfaces of each kind below `folder`."""
    return {
        kind: [
            parse(file.stem, file.read_text()) for file in sorted(folder.glob(f'{kind}/*.{kind}'))
        ]
        for kind in KINDS
    }


def parse(name: str, content: str) -> Interface:
    """Return the content of a file. Raises ValueError for an unknown line."""
    about, _, rest = LICENCE.sub('', content).partition('\n\n')
    found = Interface(name, _words(about.splitlines()), [Part()])
    comment: list[str] = []
    of = ''
    for line in rest.splitlines():
        if line == '---':
            found.parts.append(Part())
            comment, of = [], ''
        elif line.startswith('#'):
            comment.append(line)
        elif line.strip():
            of = _begin_values(comment, found.parts[-1]) or of
            entry = _entry(line, _words(comment), of)
            found.parts[-1].entries.append(entry)
            comment = []
    return found


def _begin_values(comment: list[str], part: Part) -> str:
    """Remove the heading of constants from a comment; return the name of their field."""
    match = VALUES.fullmatch(comment[0].lstrip('# ')) if comment else None
    if match is None:
        return ''
    del comment[0]
    part.groups[match[1]] = match[2]
    return match[1]


def _entry(line: str, text: str, of: str) -> InterfaceEntry:
    match = LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f'not a line of an interface: {line!r}')
    kind, limit, many, name, value, default = match.groups()
    return InterfaceEntry(
        name,
        f'{kind}{many or ""}',
        int(limit or 0),
        text,
        value or '',
        of if value else '',
        default or '',
    )


def _words(lines: list[str]) -> str:
    """Return the text of a comment; an empty line begins a paragraph."""
    words = '\n'.join(line.lstrip('#').strip() for line in lines)
    return '\n\n'.join(' '.join(part.split()) for part in words.split('\n\n'))


# the page


def reference(folder: Path) -> str:
    """Return the page on all interfaces below `folder`."""
    interfaces = read(folder)
    known = {each.name for found in interfaces.values() for each in found}
    users = {
        name: [each.name for found in interfaces.values() for each in found if name in each.used]
        for name in known
    }
    lines = [*_overview()]
    for kind, (heading, titles) in KINDS.items():
        lines += [f'## {heading}', '']
        for each in interfaces[kind]:
            lines += [f'### {each.name}', '', each.about, '', *_carriers(each, kind, users), '']
            for title, part in zip(titles, each.parts, strict=True):
                lines += _part(title, part, known)
    return '\n'.join(lines).rstrip() + '\n'


def _overview() -> list[str]:
    rows = [
        f'| `{o.node}` | {o.kind.value.split()[0]} | `{o.name}` | {_linked(o.type)} |'
        for o in NODE_ENDPOINTS
    ]
    return [
        '## Endpoints of each node',
        '',
        '| node | | name | type |',
        '|---|---|---|---|',
        *rows,
        '',
    ]


def _linked(full: str) -> str:
    package, _, name = full.split('/')
    # the events of a service have no section of their own
    target = name.partition('_')[0].lower()
    return f'[{name}](#{target})' if package == INTERFACE_PACKAGE else f'`{full}`'


def _carriers(interface: Interface, kind: str, users: dict[str, list[str]]) -> list[str]:
    """Return the line with the endpoints and the interfaces that use an interface."""
    full = f'{INTERFACE_PACKAGE}/{kind}/{interface.name}'
    users_text = []
    for endpoint in Endpoint:
        nodes = [
            f'`{o.node}` ({o.name})'
            for o in NODE_ENDPOINTS
            if (o.type, o.kind) == (full, endpoint)
        ]
        if nodes:
            users_text.append(f'{endpoint.value} {", ".join(nodes)}')
    if parts := users[interface.name]:
        users_text.append(f'part of {", ".join(_link(name) for name in parts)}')
    text = '; '.join(users_text)
    return [f'*{text[0].upper()}{text[1:]}.*'] if text else []


def _link(name: str) -> str:
    return f'[{name}](#{name.lower()})'


def _part(title: str, part: Part, known: set[str]) -> list[str]:
    constants = [entry for entry in part.entries if entry.value]
    fields = [entry for entry in part.entries if not entry.value]
    lines = [f'**{title}**' + ('' if part.entries else ': nothing.'), ''] if title else []
    if fields:
        lines += ['| field | type | bound | meaning |', '|---|---|---|---|']
        lines += [
            f'| `{e.name}` | {_type(e.type, known)} | {e.bound} | {_cell(e.text)} |'
            for e in fields
        ]
        lines.append('')
    if constants:
        lines += ['| of | value | name | meaning |', '|---|---|---|---|']
        lines += [f'| `{e.of}` | {e.value} | `{e.name}` | {_cell(e.text)} |' for e in constants]
        lines.append('')
    lines += [f'`{of}`: {text}.\n' for of, text in part.groups.items() if text]
    return lines


def _type(kind: str, known: set[str]) -> str:
    name, is_list, _ = kind.partition('[')
    if name not in known:
        return f'`{kind}`'
    return _link(name) + (' list' if is_list else '')


def _cell(text: str) -> str:
    return text.replace('\n\n', ' ').replace('|', '\\|')

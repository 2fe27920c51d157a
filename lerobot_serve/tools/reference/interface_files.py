# SPDX-License-Identifier: Apache-2.0
"""
The interface files (.msg, .srv, .action) as a page of the reference. Plain; one thread.

A comment above a line belongs to it, the first block of a file to the whole. A comment `values of
NAME` or `bits of NAME` begins the constants of that field.
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

LINE = re.compile(r'([\w/]+)(?:<=(\d+))?(\[(?:<=)?\d*\])?\s+(\w+)(?:\s*=\s*(\S+))?')
VALUES = re.compile(r'(?:values|bits) of (\w+):? ?(.*)')
# folder -> heading, and what the parts of a file between its lines --- are
KINDS = {
    'msg': ('Messages', ('',)),
    'srv': ('Services', ('Request', 'Reply')),
    'action': ('Actions', ('Goal', 'Result', 'Feedback')),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A field, or with a `value` a constant `of` a field."""

    name: str
    type: str
    bound: str = ''
    text: str = ''
    value: str = ''
    of: str = ''


@dataclass(slots=True)
class Part:
    """What stands between two lines ---; `groups` says more of some fields' constants."""

    entries: list[Entry] = field(default_factory=list)
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
        return {e.type.removesuffix('[]') for part in self.parts for e in part.entries}


def read(folder: Path) -> dict[str, list[Interface]]:
    """Return the interfaces of each kind that lie below `folder`."""
    return {
        kind: [
            parse(file.stem, file.read_text()) for file in sorted(folder.glob(f'{kind}/*.{kind}'))
        ]
        for kind in KINDS
    }


def parse(name: str, content: str) -> Interface:
    """Return what a file says. Raises ValueError for a line that is none of ours."""
    about, _, rest = content.partition('\n\n')
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
    """Take the heading of constants out of a comment, and return whose they are."""
    match = VALUES.fullmatch(comment[0].lstrip('# ')) if comment else None
    if match is None:
        return ''
    del comment[0]
    part.groups[match[1]] = match[2]
    return match[1]


def _entry(line: str, text: str, of: str) -> Entry:
    match = LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f'not a line of an interface: {line!r}')
    kind, limit, many, name, value = match.groups()
    bound = f'at most {limit} bytes' if limit else ''
    if many:
        bound = f'each {bound}' if bound else ''
    return Entry(name, f'{kind}{many or ""}', bound, text, value or '', of if value else '')


def _words(lines: list[str]) -> str:
    """Return a comment without its marks; an empty line of it begins a paragraph."""
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
        f'| `{o.node}` | {o.way.value.split()[0]} | `{o.name}` | {_linked(o.type)} |'
        for o in NODE_ENDPOINTS
    ]
    return [
        '## What each node has',
        '',
        '| node | | name | type |',
        '|---|---|---|---|',
        *rows,
        '',
    ]


def _linked(full: str) -> str:
    package, _, name = full.split('/')
    # the events of a service have no part of their own
    target = name.partition('_')[0].lower()
    return f'[{name}](#{target})' if package == INTERFACE_PACKAGE else f'`{full}`'


def _carriers(interface: Interface, kind: str, users: dict[str, list[str]]) -> list[str]:
    """Say where an interface is met."""
    full = f'{INTERFACE_PACKAGE}/{kind}/{interface.name}'
    words = [
        f'{way.value} {", ".join(found)}'
        for way in Endpoint
        if (
            found := [
                f'`{o.node}` ({o.name})' for o in NODE_ENDPOINTS if (o.type, o.way) == (full, way)
            ]
        )
    ]
    if parts := users[interface.name]:
        words.append(f'part of {", ".join(_link(name) for name in parts)}')
    text = '; '.join(words)
    return [f'*{text[0].upper()}{text[1:]}.*'] if text else []


def _link(name: str) -> str:
    return f'[{name}](#{name.lower()})'


def _part(title: str, part: Part, known: set[str]) -> list[str]:
    constants = [entry for entry in part.entries if entry.value]
    fields = [entry for entry in part.entries if not entry.value]
    lines = [f'**{title}**' + ('' if part.entries else ': nothing.'), ''] if title else []
    if fields:
        lines += ['| field | type | bound | what it is |', '|---|---|---|---|']
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
    name = kind.removesuffix('[]')
    if name not in known:
        return f'`{kind}`'
    return _link(name) + (' list' if kind.endswith('[]') else '')


def _cell(text: str) -> str:
    return text.replace('\n\n', ' ').replace('|', '\\|')

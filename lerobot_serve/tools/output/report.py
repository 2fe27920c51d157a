# SPDX-License-Identifier: Apache-2.0
"""
What a verb found, said once: text for people, an object of JSON for programs, a page of HTML.

A report is a sequence of parts: lines, tables and facts. Names and texts in it may come from
traces, bags, other processes and the network; the renderers leave no control character in them.
Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
import textwrap
from typing import Any

from lerobot_serve.tools.output.text import without_controls

GAP = '  '
# a narrower column is not wrapped: the terminal does it
LEAST_WIDTH = 24

Row = Sequence[str]
STYLE = """
:root { color-scheme: light dark; --text: #222; --weak: #555; --page: #fff; --line: #ddd;
  --accent: #0b5cad; --mark: #c22 }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --weak: #9aa4ae; --page: #14181d;
  --line: #343b43; --accent: #6cb0ff; --mark: #ff7b72 } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem; color: var(--text); background: var(--page) }
table { border-collapse: collapse; margin-bottom: 1.5rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
td { overflow-wrap: anywhere; padding: .15rem .9rem .15rem 0; vertical-align: top }
figure { margin: 1.5rem 0; overflow-x: auto }
figcaption { font-weight: 600 } figcaption span { font-weight: 400 }
svg { width: 100%; height: auto } svg.chart { min-width: 36rem }
svg.chart text { font-size: 11px; fill: var(--weak) }
svg .grid { stroke: var(--line) } svg line.mark { stroke: var(--mark); stroke-dasharray: 4 3 }
svg.chart text.mark { fill: var(--mark); paint-order: stroke; stroke: var(--page);
  stroke-width: 4px }
"""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below heads, in columns of equal width; `right` are the columns that hold numbers."""

    heads: Row
    rows: Sequence[Row]
    indent: int = 0
    right: Collection[int] = ()
    least_widths: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, one line each; `width` is the least one of the names."""

    rows: Sequence[tuple[str, str]]
    indent: int = 2
    width: int = 0


Part = str | Table | Facts


@dataclass(frozen=True, slots=True)
class Report:
    """
    The result of a verb.

    data          what --json prints
    parts         what is printed without it, and shown in a page; a text is one line
    status        exit status
    error         why the verb failed although it has a result; the status is 1 then
    has_changed   whether the verb has changed something: then a result that cannot be printed is
                  no failure
    marks         words that begin a line -> their colour on a terminal, as of an escape sequence
    """

    data: dict[str, Any]
    parts: Sequence[Part]
    status: int = 0
    has_changed: bool = False
    error: str = ''
    marks: Mapping[str, int] = field(default_factory=dict)

    def as_text(self, columns: int | None = None) -> str:
        """
        Return the parts as lines. What exceeds `columns` continues in the next line, indented;
        without `columns` nothing is wrapped, so that each line can be searched for.
        """
        lines = [line for part in self.parts for line in _lines(part, columns)]
        return '\n'.join(map(self._painted, lines) if columns else lines)

    def _painted(self, line: str) -> str:
        begin = line.lstrip(' ')
        for mark, colour in self.marks.items():
            if begin == mark or begin.startswith(f'{mark} '):
                return line.replace(mark, f'\033[{colour}m{mark}\033[0m', 1)
        return line


def as_html(parts: Sequence[Part]) -> str:
    """Return the parts as HTML without a frame: paragraphs and tables."""
    return ''.join(map(_html, parts))


def html_page(title: str, body: str, style: str = '') -> str:
    """Return a file of HTML without links, for phones and for dark screens, too."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>{body}'
        '</body></html>\n'
    )


def _lines(part: Part, columns: int | None) -> Iterator[str]:
    if isinstance(part, str):
        indent = len(part) - len(part.lstrip(' '))
        yield from _wrapped('', without_controls(part), indent + len(GAP), columns)
        return
    rows = [part.heads, *part.rows] if isinstance(part, Table) else part.rows
    cells = [tuple(map(without_controls, row)) for row in rows]
    widths = _widths(part, cells)
    right = part.right if isinstance(part, Table) else ()
    for row in cells:
        *firsts, last = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        head = ' ' * part.indent + ''.join(each + GAP for each in firsts)
        yield from _wrapped(head, last.rstrip(), len(head), columns)


def _widths(part: Table | Facts, cells: Sequence[Row]) -> list[int]:
    least = (part.width, 0) if isinstance(part, Facts) else part.least_widths
    found = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [max(pair) for pair in zip(found, [*least, *[0] * len(found)], strict=False)]


def _wrapped(head: str, text: str, indent: int, columns: int | None) -> Iterator[str]:
    """Yield `head` and `text` as a line, or as several with `indent`."""
    if columns is None or len(head) + len(text) <= columns or columns - indent < LEAST_WIDTH:
        yield (head + text).rstrip()
        return
    begin = ' ' * (len(text) - len(text.lstrip(' ')))
    yield from textwrap.wrap(
        text.lstrip(' '),
        columns,
        initial_indent=head + begin,
        subsequent_indent=' ' * indent,
        break_on_hyphens=False,
    )


def _html(part: Part) -> str:
    if isinstance(part, str):
        return f'<p>{escape(without_controls(part))}</p>' if part.strip() else ''
    rows = ''.join(f'<tr>{_cells(row, "td")}</tr>' for row in part.rows)
    heads = f'<tr>{_cells(part.heads, "th")}</tr>' if isinstance(part, Table) else ''
    return f'<table>{heads}{rows}</table>'


def _cells(row: Row, tag: str) -> str:
    return ''.join(f'<{tag}>{escape(without_controls(cell))}</{tag}>' for cell in row)

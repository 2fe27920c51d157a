# SPDX-License-Identifier: Apache-2.0
"""The blocks and commands of the documents, taken apart as a shell would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import re
import shlex

from support.paths import REPOSITORY

REPOSITORY = REPOSITORY
PAGES = [REPOSITORY / 'README.md', *sorted((REPOSITORY / 'docs').glob('*.md'))]
BLOCK = re.compile(r'^```(\w*)\n(.*?)^```', re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r'([A-Z_]+)=(.*)', re.DOTALL)
# what a shell puts in place of a command within a command
INNER = re.compile(r'\$\(([^()]*)\)')
SHARE = 'ros2 pkg prefix --share lerobot_serve'
# blocks that show something else than commands, by how they begin
PICTURES = (' robot (no weights', 'lerobot_serve/\n')


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page, with the variables before it."""

    page: str
    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f'{self.page}: {shlex.join(self.words)}'


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """Give page and content of each block in one of these languages."""
    for page in PAGES:
        for language, content in BLOCK.findall(page.read_text()):
            if language in languages:
                yield page.name, content


def commands() -> list[Command]:
    """Return every command of every page."""
    return [
        command for page, block in blocks('', 'console', 'bash') for command in of(page, block)
    ]


def of(page: str, block: str) -> Iterator[Command]:
    """Give the commands of a block: of one in which lines begin with $, these alone."""
    if block.startswith(PICTURES):
        return
    lines = block.splitlines()
    if any(line.startswith('$ ') for line in lines):
        lines = [line[2:] for line in lines if line.startswith('$ ')]
    for line in whole(lines):
        yield from in_line(page, line)


def whole(lines: list[str]) -> Iterator[str]:
    """Join what a backslash or an open quotation mark leaves open."""
    open_line = ''
    for line in lines:
        open_line += line
        if open_line.endswith('\\'):
            open_line = open_line[:-1]
            continue
        try:
            shlex.split(open_line, comments=True)
        except ValueError:
            open_line += '\n'
            continue
        yield open_line
        open_line = ''
    assert not open_line, f'a quotation mark is left open: {open_line}'


def in_line(page: str, line: str) -> Iterator[Command]:
    """Give what stands between && and |; what is written into a file is not part of a command."""
    for inner in INNER.findall(line):
        yield from in_line(page, inner)
    words: list[str] = []
    for word in (*tokens(INNER.sub('SHARE', line)), ';'):
        if word.strip('&|;'):
            words.append(word)
        elif words:
            yield command(page, words)
            words = []


def tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars='&|;')
    lexer.whitespace_split = True
    return list(lexer)


def command(page: str, words: list[str]) -> Command:
    if '>' in words:
        words = words[: words.index('>')]
    variables = []
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        variables.append((match[1], match[2]))
        words = words[1:]
    return Command(page, tuple(words), tuple(variables))

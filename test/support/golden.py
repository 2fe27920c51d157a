# SPDX-License-Identifier: Apache-2.0
"""
What users and other programs rely on, as texts in test/golden that no change passes unnoticed.

After a change that is meant: `make golden`, and review what git then shows.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import unified_diff
from typing import Any

from prometheus_client.core import Metric

from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.output.text import json_text
from support.paths import REPOSITORY
from support.refusals import refused, Told

FOLDER = REPOSITORY / 'test' / 'golden'
OPTION = '--write-golden'
# of a file that has its inputs, too
OUTCOME, NEXT_TEXT = '\n==> ', '---\n'
# a number that is not known yet is null
NUMBERS = ('int', 'float', 'NoneType')


def listed(families: Iterable[Metric]) -> str:
    """Return name, type and labels of metrics, one a line."""
    lines = (' '.join((each.name, each.type, *each._labelnames)) for each in families)
    return '\n'.join(sorted(lines)) + '\n'


def form_of(found: object) -> str:
    """Return the fields of an object of JSON with their types, one a line."""
    return '\n'.join(dict.fromkeys(_fields(found, ''))) + '\n'


def _fields(found: object, place: str) -> Iterator[str]:
    if isinstance(found, dict) and found:
        for name, value in found.items():
            yield from _fields(value, f'{place}.{name}' if place else name)
    elif isinstance(found, list) and found:
        for value in found:
            yield from _fields(value, f'{place}[]')
    else:
        kind = type(found).__name__
        yield f'{place}: {"number or null" if kind in NUMBERS else kind}'


def _literal(line: str) -> tuple[Any, ...] | None:
    try:
        return literal_eval(f'({line},)')
    except (SyntaxError, ValueError):
        return None


class Golden:
    """Compares texts with their files, or writes these."""

    def __init__(self, *, writes: bool) -> None:
        self._writes = writes

    def holds(self, name: str, text: str) -> None:
        """Fail where a text is no longer that of its file."""
        file = FOLDER / name
        if self._writes:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        kept = file.read_text() if file.exists() else ''
        lines = unified_diff(kept.splitlines(), text.splitlines(), 'kept', 'now', lineterm='')
        changed = '\n'.join(lines)
        assert not changed, f'test/golden/{name} differs; if it is meant: make golden\n{changed}'

    def holds_outcomes(self, name: str, outcome: Callable[[str], str]) -> None:
        """Fail where a text in the file `name` has no longer the outcome behind it."""
        kept = (FOLDER / name).read_text()
        texts = [each.partition(OUTCOME)[0] for each in kept.split(NEXT_TEXT)]
        self.holds(name, NEXT_TEXT.join(f'{text}{OUTCOME}{outcome(text)}' for text in texts))

    def holds_refusals(
        self,
        name: str,
        act: Callable[..., object],
        error: type[Exception],
        told: Told = str,
        more: Iterable[tuple[Any, ...]] = (),
    ) -> None:
        """
        Fail where a case in the file `refusals/NAME.txt` is refused with another line.

        `more` are those that are no literals of Python, or too long to be in the file.
        """
        lines = (FOLDER / 'refusals' / f'{name}.txt').read_text().splitlines()
        cases = [*filter(None, map(_literal, lines[::2])), *more]
        self.holds(f'refusals/{name}.txt', refused(cases, act, error, told))

    def holds_reports(self, name: str, reports: Mapping[str, Report]) -> None:
        """Fail where a report, as text or as JSON, is no longer that of the file `name`."""
        shown = ''.join(
            f'== {title}, status {each.status}\n{each.as_text()}\n{json_text(each.data)}\n\n'
            for title, each in reports.items()
        )
        self.holds(f'reports/{name}.txt', shown)

    def holds_folder(self, name: str, texts: dict[str, str]) -> None:
        """The same for all files of a folder, which has no other."""
        kept = {file.name for file in (FOLDER / name).glob('*')}
        for file in kept - texts.keys() if self._writes else ():
            (FOLDER / name / file).unlink()
            kept.discard(file)
        others = kept ^ texts.keys()
        assert self._writes or not others, f'{others}; if it is meant: make golden'
        for file, text in texts.items():
            self.holds(f'{name}/{file}', text)

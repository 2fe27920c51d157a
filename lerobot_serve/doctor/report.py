"""All findings for a person and for a program. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lerobot_serve.doctor.finding import counts, Finding, Group, Verdict, worst

MARKS = {
    Verdict.OK: 'ok',
    Verdict.WARNING: 'WARN',
    Verdict.FAILURE: 'FAIL',
    Verdict.SKIPPED: 'skip',
}
# green, yellow, red, grey
COLOURS = {Verdict.OK: 32, Verdict.WARNING: 33, Verdict.FAILURE: 31, Verdict.SKIPPED: 90}
BOLD = 1
ORDER = (Verdict.FAILURE, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED)
PLURAL = {Verdict.FAILURE: 'failures', Verdict.WARNING: 'warnings'}
MARK_WIDTH = 4


def as_text(groups: Sequence[Group], *, coloured: bool) -> str:
    """Return one line a finding, its remedy below it, and the count."""
    lines = []
    for group in groups:
        lines += [_paint(group.name, BOLD, coloured)]
        for finding in group.findings:
            lines += _lines(finding, coloured)
        lines += ['']
    return '\n'.join([*lines, summary(groups)])


def summary(groups: Sequence[Group]) -> str:
    """Return how often there is each verdict; failures and warnings always."""
    found = counts(groups)
    return ', '.join(
        f'{found[v]} {PLURAL[v] if v in PLURAL and found[v] != 1 else v.value}'
        for v in ORDER
        if found[v] or v in PLURAL
    )


def as_json(groups: Sequence[Group]) -> dict[str, Any]:
    found = counts(groups)
    return {
        'outcome': worst(groups).value,
        'counts': {verdict.value: found[verdict] for verdict in ORDER},
        'groups': [
            {'name': group.name, 'findings': [_object(finding) for finding in group.findings]}
            for group in groups
        ],
    }


def _object(finding: Finding) -> dict[str, str]:
    return {
        'name': finding.name,
        'verdict': finding.verdict.value,
        'found': finding.found,
        'remedy': finding.remedy,
    }


def _lines(finding: Finding, coloured: bool) -> list[str]:
    mark = _paint(MARKS[finding.verdict].ljust(MARK_WIDTH), COLOURS[finding.verdict], coloured)
    lines = [f'  {mark}  {printable(finding.name)}: {printable(finding.found)}']
    if finding.remedy:
        lines += [f'  {" " * MARK_WIDTH}  remedy: {printable(finding.remedy)}']
    return lines


def printable(text: str) -> str:
    """Return one line; what would disturb a terminal is escaped."""
    line = ' '.join(text.split())
    return (
        line
        if line.isprintable()
        else ''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    )


def _paint(text: str, colour: int, coloured: bool) -> str:
    return f'\033[{colour}m{text}\033[0m' if coloured else text

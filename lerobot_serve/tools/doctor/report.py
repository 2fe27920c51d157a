# SPDX-License-Identifier: Apache-2.0
"""Formats all findings as text and as JSON. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lerobot_serve.tools.doctor.finding import (
    count_levels,
    Finding,
    FindingGroup,
    FindingLevel,
    worst_level,
)

MARKS = {
    FindingLevel.OK: 'ok',
    FindingLevel.WARNING: 'WARN',
    FindingLevel.FAILURE: 'FAIL',
    FindingLevel.SKIPPED: 'skip',
}
# green, yellow, red, grey
COLOURS = {
    FindingLevel.OK: 32,
    FindingLevel.WARNING: 33,
    FindingLevel.FAILURE: 31,
    FindingLevel.SKIPPED: 90,
}
BOLD = 1
ORDER = (FindingLevel.FAILURE, FindingLevel.WARNING, FindingLevel.OK, FindingLevel.SKIPPED)
PLURAL = {FindingLevel.FAILURE: 'failures', FindingLevel.WARNING: 'warnings'}
MARK_WIDTH = 4


def as_text(groups: Sequence[FindingGroup], *, coloured: bool) -> str:
    """Return one line per finding, its remedy below it, and the counts."""
    lines = []
    for group in groups:
        lines += [_paint(group.name, BOLD, coloured)]
        for finding in group.findings:
            lines += _lines(finding, coloured)
        lines += ['']
    return '\n'.join([*lines, summary(groups)])


def summary(groups: Sequence[FindingGroup]) -> str:
    """Return the count of each verdict; failures and warnings always."""
    found = count_levels(groups)
    return ', '.join(
        f'{found[v]} {PLURAL[v] if v in PLURAL and found[v] != 1 else v.value}'
        for v in ORDER
        if found[v] or v in PLURAL
    )


def as_json(groups: Sequence[FindingGroup]) -> dict[str, Any]:
    found = count_levels(groups)
    return {
        'outcome': worst_level(groups).value,
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
    """Return the text as one line, with control characters escaped."""
    line = ' '.join(text.split())
    return (
        line
        if line.isprintable()
        else ''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    )


def _paint(text: str, colour: int, coloured: bool) -> str:
    return f'\033[{colour}m{text}\033[0m' if coloured else text

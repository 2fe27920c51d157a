# SPDX-License-Identifier: Apache-2.0
"""The report of all findings. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lerobot_serve.tools.doctor.finding import (
    count_levels,
    Finding,
    FindingGroup,
    FindingLevel,
    worst_level,
)
from lerobot_serve.tools.output.report import Facts, Part, Report

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


def doctor_report(groups: Sequence[FindingGroup]) -> Report:
    """Return one line for each finding, its remedy below it, and the counts."""
    counts = count_levels(groups)
    data = {
        'outcome': worst_level(groups).value,
        'counts': {verdict.value: counts[verdict] for verdict in ORDER},
        'groups': [
            {'name': group.name, 'findings': [_object(finding) for finding in group.findings]}
            for group in groups
        ],
    }
    parts: list[Part] = []
    for group in groups:
        parts += [group.name, Facts(list(_rows(group)), width=MARK_WIDTH), '']
    marks = {MARKS[level]: colour for level, colour in COLOURS.items()}
    return Report(
        data,
        [*parts, summary(groups)],
        1 if worst_level(groups) is FindingLevel.FAILURE else 0,
        marks=marks | {group.name: BOLD for group in groups},
    )


def _rows(group: FindingGroup) -> Iterator[tuple[str, str]]:
    for finding in group.findings:
        yield MARKS[finding.verdict], printable(f'{finding.name}: {finding.found}')
        if finding.remedy:
            yield '', printable(f'remedy: {finding.remedy}')


def summary(groups: Sequence[FindingGroup]) -> str:
    """Return the count of each verdict; failures and warnings always."""
    found = count_levels(groups)
    return ', '.join(
        f'{found[v]} {PLURAL[v] if v in PLURAL and found[v] != 1 else v.value}'
        for v in ORDER
        if found[v] or v in PLURAL
    )


def _object(finding: Finding) -> dict[str, str]:
    return {
        'name': finding.name,
        'verdict': finding.verdict.value,
        'found': finding.found,
        'remedy': finding.remedy,
    }


def printable(text: str) -> str:
    """Return the text as one line, with control characters escaped."""
    line = ' '.join(text.split())
    return (
        line
        if line.isprintable()
        else ''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    )

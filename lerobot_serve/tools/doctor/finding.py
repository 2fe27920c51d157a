# SPDX-License-Identifier: Apache-2.0
"""Findings, each with its subject, state and remedy, and the report of all. Pure; any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from lerobot_serve.tools.output.report import Facts, Part, Report
from lerobot_serve.tools.output.text import printable

BOLD = 1
MARK_WIDTH = 4


class FindingLevel(Enum):
    """State of a finding; `skipped`: not checked."""

    OK = 'ok'
    WARNING = 'warning'
    FAILURE = 'failure'
    SKIPPED = 'skipped'


WITH_REMEDY = (FindingLevel.WARNING, FindingLevel.FAILURE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; a warning or failure has a `remedy`, others have none. Raises ValueError."""

    name: str
    verdict: FindingLevel
    found: str
    remedy: str = ''

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.found.strip():
            raise ValueError(f'a finding needs a name and a text, got {self.name!r}')
        if bool(self.remedy.strip()) != (self.verdict in WITH_REMEDY):
            raise ValueError(
                f'{self.name}: a {self.verdict.value} must '
                f'{"" if self.verdict in WITH_REMEDY else "not "}have a remedy'
            )


# by their subject, in the order of the report
Groups = Mapping[str, Sequence[Finding]]


def ok(name: str, found: str) -> Finding:
    return Finding(name, FindingLevel.OK, found)


def skipped(name: str, found: str) -> Finding:
    return Finding(name, FindingLevel.SKIPPED, found)


def warning(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, FindingLevel.WARNING, found, remedy)


def failure(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, FindingLevel.FAILURE, found, remedy)


def count_levels(groups: Groups) -> Counter[FindingLevel]:
    """Return the number of findings of each level."""
    return Counter(finding.verdict for group in groups.values() for finding in group)


def worst_level(groups: Groups) -> FindingLevel:
    """Return failure or warning if there is one, otherwise ok."""
    found = count_levels(groups)
    return next(
        (v for v in (FindingLevel.FAILURE, FindingLevel.WARNING) if found[v]), FindingLevel.OK
    )


# level -> its mark and the colour of it: red, yellow, green, grey; in the order of the counts
MARKS = {
    FindingLevel.FAILURE: ('FAIL', 31),
    FindingLevel.WARNING: ('WARN', 33),
    FindingLevel.OK: ('ok', 32),
    FindingLevel.SKIPPED: ('skip', 90),
}
PLURAL = {FindingLevel.FAILURE: 'failures', FindingLevel.WARNING: 'warnings'}


def doctor_report(groups: Groups) -> Report:
    """Return one line for each finding, its remedy below it, and the counts."""
    counts = count_levels(groups)
    data = {
        'outcome': worst_level(groups).value,
        'counts': {verdict.value: counts[verdict] for verdict in MARKS},
        'groups': [
            {
                'name': name,
                'findings': [asdict(each) | {'verdict': each.verdict.value} for each in findings],
            }
            for name, findings in groups.items()
        ],
    }
    parts: list[Part] = []
    for name, findings in groups.items():
        parts += [name, Facts(list(_rows(findings)), width=MARK_WIDTH), '']
    return Report(
        data,
        [*parts, summary(groups)],
        1 if worst_level(groups) is FindingLevel.FAILURE else 0,
        marks=dict(MARKS.values()) | dict.fromkeys(groups, BOLD),
    )


def _rows(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    for finding in findings:
        yield MARKS[finding.verdict][0], one_line(f'{finding.name}: {finding.found}')
        if finding.remedy:
            yield '', one_line(f'remedy: {finding.remedy}')


def summary(groups: Groups) -> str:
    """Return the count of each verdict; failures and warnings always."""
    found = count_levels(groups)
    return ', '.join(
        f'{found[v]} {PLURAL[v] if v in PLURAL and found[v] != 1 else v.value}'
        for v in MARKS
        if found[v] or v in PLURAL
    )


def one_line(text: str) -> str:
    """Return the text as one line; one with control characters is escaped."""
    return printable(' '.join(text.split()))

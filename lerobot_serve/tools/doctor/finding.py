# SPDX-License-Identifier: Apache-2.0
"""One line of the report: the subject, its state and the remedy. Any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


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


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings about one subject, in the order of the report."""

    name: str
    findings: tuple[Finding, ...]


def ok(name: str, found: str) -> Finding:
    return Finding(name, FindingLevel.OK, found)


def skipped(name: str, found: str) -> Finding:
    return Finding(name, FindingLevel.SKIPPED, found)


def warning(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, FindingLevel.WARNING, found, remedy)


def failure(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, FindingLevel.FAILURE, found, remedy)


def count_levels(groups: Iterable[FindingGroup]) -> Counter[FindingLevel]:
    """Return the number of findings of each level."""
    return Counter(finding.verdict for group in groups for finding in group.findings)


def worst_level(groups: Iterable[FindingGroup]) -> FindingLevel:
    """Return failure or warning if there is one, otherwise ok."""
    found = count_levels(groups)
    return next(
        (v for v in (FindingLevel.FAILURE, FindingLevel.WARNING) if found[v]), FindingLevel.OK
    )

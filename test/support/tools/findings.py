# SPDX-License-Identifier: Apache-2.0
"""Findings of the doctor as text, for golden files."""

from __future__ import annotations

from collections.abc import Iterable
import re

from lerobot_serve.tools.doctor.finding import Finding, FindingLevel


def listed(findings: Iterable[Finding]) -> str:
    """Return a line for each finding, with its remedy below it."""
    lines = []
    for each in findings:
        lines.append(f'{each.verdict.value} {each.name}: {each.found}')
        lines += [f'    {each.remedy}'] if each.remedy else []
    # pins differ between versions of Python
    return re.sub(r'==[\d.]+', '==VERSION', '\n'.join(lines)) + '\n'


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def wrong(findings: Iterable[Finding]) -> list[str]:
    """Return the names of those that are not ok, nor skipped."""
    well = (FindingLevel.OK, FindingLevel.SKIPPED)
    return [finding.name for finding in findings if finding.verdict not in well]

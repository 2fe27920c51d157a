# SPDX-License-Identifier: Apache-2.0
"""Findings of the doctor as text, for golden files."""

from __future__ import annotations

from collections.abc import Iterable
import re

from lerobot_serve.tools.doctor.finding import Finding


def listed(findings: Iterable[Finding]) -> str:
    """Return a line for each finding, with its remedy below it."""
    lines = []
    for each in findings:
        lines.append(f'{each.verdict.value} {each.name}: {each.found}')
        lines += [f'    {each.remedy}'] if each.remedy else []
    # pins differ between versions of Python
    return re.sub(r'==[\d.]+', '==VERSION', '\n'.join(lines)) + '\n'

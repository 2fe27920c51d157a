# SPDX-License-Identifier: Apache-2.0
"""Audits the traces of a run. One thread; reads files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot_serve.tools.audit.checks.check import TRACE_CHECKS
from lerobot_serve.tools.audit.engine import run_audit
from lerobot_serve.tools.audit.report import audit_report
from lerobot_serve.trace.format.schema import TraceError


def audit_traces(traces: Path) -> dict[str, Any]:
    """Audit the traces of a folder and return the result; empty without traces."""
    if not any(traces.glob('*')):
        return {}
    try:
        found = run_audit([traces])
    except TraceError as error:
        return {'outcome': 'not_judged', 'why': str(error), 'violations': None, 'judged': 0}
    driving = [each for each in found.results if each.check not in TRACE_CHECKS]
    (traces.parent / 'audit.txt').write_text(audit_report(found).as_text() + '\n')
    return {
        'outcome': found.outcome.value,
        'traces': len(found.runs),
        'violations': sum(each.violations for each in driving),
        'judged': sum(each.judged for each in driving),
        # a killed process writes no footer
        'without_end': sum(not run.is_complete for run in found.runs),
        'checks': {each.check: each.outcome.value for each in found.results},
    }

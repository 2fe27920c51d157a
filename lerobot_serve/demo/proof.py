"""What the traces of a run prove. One thread; reads files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot_serve.trace.audit.audit import audit
from lerobot_serve.trace.audit.report import table
from lerobot_serve.trace.audit.tally import OF_THE_TRACE
from lerobot_serve.trace.schema import TraceError


def proof(traces: Path) -> dict[str, Any]:
    """Return the result of the audit of a folder; empty when there is nothing to judge."""
    if not any(traces.glob('*')):
        return {}
    try:
        found = audit([traces])
    except TraceError as error:
        return {'outcome': 'not_judged', 'why': str(error), 'violations': None, 'judged': 0}
    driving = [each for each in found.results if each.check not in OF_THE_TRACE]
    (traces.parent / 'audit.txt').write_text(table(found) + '\n')
    return {
        'outcome': found.outcome.value,
        'traces': len(found.runs),
        'violations': sum(each.violations for each in driving),
        'judged': sum(each.judged for each in driving),
        # a process that is killed cannot say that it ends
        'without_end': sum(not run.is_complete for run in found.runs),
        'checks': {each.check: each.outcome.value for each in found.results},
    }

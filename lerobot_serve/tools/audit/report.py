# SPDX-License-Identifier: Apache-2.0
"""The report of an audit. Pure functions; any thread."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lerobot_serve.tools.audit.check import CHECKS
from lerobot_serve.tools.audit.engine import AuditResult, CheckResult, CheckStatus
from lerobot_serve.tools.output.report import Facts, Part, Report
from lerobot_serve.tools.output.text import printable
from lerobot_serve.tools.traces.trace_run import TraceRun

STATUS_TEXT = {
    CheckStatus.HOLDS: 'holds',
    CheckStatus.HOLDS_AS_RECORDED: 'holds for the recorded part',
    CheckStatus.INCOMPLETE: 'incomplete',
    CheckStatus.VIOLATED: 'VIOLATED',
    CheckStatus.NOT_JUDGED: 'not judged',
}
SUMMARY_TEXT = {
    CheckStatus.HOLDS: 'All checks hold.',
    CheckStatus.HOLDS_AS_RECORDED: 'All judged checks hold; not everything could be judged.',
    CheckStatus.INCOMPLETE: 'Incomplete: judged checks hold, but records are missing; see above.',
    CheckStatus.VIOLATED: 'VIOLATED: see above.',
    CheckStatus.NOT_JUDGED: 'Not judged: the traces hold no commands or requests.',
}
# outcome -> exit status
STATUS = {
    CheckStatus.HOLDS: 0,
    CheckStatus.HOLDS_AS_RECORDED: 0,
    CheckStatus.VIOLATED: 3,
    CheckStatus.NOT_JUDGED: 4,
    CheckStatus.INCOMPLETE: 5,
}
STATUS_WIDTH = max(map(len, STATUS_TEXT.values()))


def audit_report(audit: AuditResult) -> Report:
    """Return the report; docs/audit.md lists the fields of its data."""
    data = {
        'outcome': audit.outcome.value,
        'episodes': audit.episodes,
        'episodes_joined': audit.joined,
        'without_cage': asdict(audit.uncaged),
        'runs': [_run_json(run) for run in audit.runs],
        'checks': [
            asdict(each) | {'outcome': each.outcome.value, 'about': CHECKS[each.check]}
            for each in audit.results
        ],
    }
    parts: list[Part] = [_run_line(run) for run in audit.runs]
    parts += [
        f'{audit.episodes} episodes with a slot, {audit.joined} of them in more than one trace',
        '',
    ]
    for each in audit.results:
        parts += _result_parts(each)
    if audit.uncaged.text:
        parts += ['', audit.uncaged.text]
    return Report(data, [*parts, '', SUMMARY_TEXT[audit.outcome]], STATUS[audit.outcome])


def _run_line(run: TraceRun) -> str:
    state = 'complete' if run.is_complete else 'incomplete'
    role = printable(run.role or 'unknown role')
    return f'{run.path}: {role} {printable(run.node)}, {run.lines} lines, {state}'


def _run_json(run: TraceRun) -> dict[str, Any]:
    return {
        'file': str(run.path),
        'node': run.node,
        'role': run.role,
        'lines': run.lines,
        'is_complete': run.is_complete,
    }


def _result_parts(result: CheckResult) -> list[Part]:
    facts = [f'{result.judged} judged in {result.judged_runs} of {result.runs} traces']
    if result.violations:
        facts.append(f'{result.violations} violations')
    if result.gaps:
        facts.append(f'{result.gaps} missing')
    if result.why_not:
        facts.append(printable(result.why_not))
    rows = [
        (STATUS_TEXT[result.outcome], CHECKS[result.check]),
        ('', f'{result.check}: {"; ".join(facts)}'),
    ]
    parts: list[Part] = [Facts(rows, indent=0, width=STATUS_WIDTH)]
    parts += [f'  {v.file}:{v.line}: {printable(v.text)}' for v in result.shown]
    if result.violations + result.gaps > len(result.shown):
        parts.append(f'  and {result.violations + result.gaps - len(result.shown)} more')
    return parts

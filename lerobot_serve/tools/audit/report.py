# SPDX-License-Identifier: Apache-2.0
"""Formats the result of an audit as text and as JSON. Pure functions; any thread."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lerobot_serve.tools.audit.checks.check import CHECKS
from lerobot_serve.tools.audit.engine import AuditResult, CheckResult, CheckStatus
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
STATUS_WIDTH = max(map(len, STATUS_TEXT.values()))


def as_text(audit: AuditResult) -> str:
    """Return the result as text."""
    lines = [_run_line(run) for run in audit.runs]
    lines += [
        f'{audit.episodes} episodes with a slot, {audit.joined} of them in more than one trace',
        '',
    ]
    for each in audit.results:
        lines += _result_lines(each)
    if audit.uncaged.text:
        lines += ['', audit.uncaged.text]
    return '\n'.join([*lines, '', SUMMARY_TEXT[audit.outcome]])


def as_json(audit: AuditResult) -> dict[str, Any]:
    """Return the result as JSON; docs/audit.md lists the fields."""
    return {
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


def _result_lines(result: CheckResult) -> list[str]:
    facts = [f'{result.judged} judged in {result.judged_runs} of {result.runs} traces']
    if result.violations:
        facts.append(f'{result.violations} violations')
    if result.gaps:
        facts.append(f'{result.gaps} missing')
    if result.why_not:
        facts.append(printable(result.why_not))
    lines = [
        f'{STATUS_TEXT[result.outcome]:<{STATUS_WIDTH}}  {CHECKS[result.check]}',
        f'{"":<{STATUS_WIDTH}}  {result.check}: {"; ".join(facts)}',
    ]
    lines += [f'  {v.file}:{v.line}: {printable(v.text)}' for v in result.shown]
    if result.violations + result.gaps > len(result.shown):
        lines.append(f'  and {result.violations + result.gaps - len(result.shown)} more')
    return lines

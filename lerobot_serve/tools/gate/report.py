# SPDX-License-Identifier: Apache-2.0
"""The result of a gate as a record and as text. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from lerobot_serve.router.canary.gate_record import ADMITTED, GateRecord, GateVerdict, TEXT_LIMIT
from lerobot_serve.tools.gate.figures import GateFigures
from lerobot_serve.tools.gate.limits import GateLimits
from lerobot_serve.tools.gate.rules import Gate
from lerobot_serve.tools.output.report import Part, Report

WORDS: dict[GateVerdict, str] = {
    'passed': 'passed: the candidate may go on to shadow and canary',
    'overridden': 'passed by a person, against the gates below',
    'held': 'held: a performance gate failed; a better candidate, or a reason '
    '(--override GATE --reason TEXT)',
    'refused': 'refused: a safety gate failed, which cannot be overridden',
    'too_few': 'too few episodes to decide',
}
# exit statuses
PASSED, REFUSED, TOO_FEW = 0, 3, 4
MARKS = {'passed': 'ok', 'failed': 'FAILED', 'unmeasured': 'not measured'}


def make_record(
    figures: GateFigures,
    gates: Collection[Gate],
    verdict: GateVerdict,
    limits: GateLimits,
    *,
    overrides: Mapping[str, str],
    by: str,
    made: str,
) -> GateRecord:
    """Return the record; `overrides` has the reason of each overridden gate, `by` the person."""
    used = {gate.name for gate in gates if gate.blocks and gate.name in overrides}
    return GateRecord(
        figures.candidate_policy,
        figures.parent_policy,
        verdict,
        cut(verdict_text(figures, gates, verdict, limits)),
        figures.episodes,
        figures.requests,
        figures.digest,
        made,
        tuple(map(msgspec.to_builtins, gates)),
        tuple((name, overrides[name], by) for name in sorted(used)),
    )


def cut(text: str) -> str:
    """Return a text of at most TEXT_LIMIT bytes."""
    return text.encode()[:TEXT_LIMIT].decode(errors='ignore')


def verdict_text(
    figures: GateFigures, gates: Collection[Gate], verdict: GateVerdict, limits: GateLimits
) -> str:
    """Return the verdict with the gates that block, and what would be enough."""
    if verdict == 'too_few':
        return (
            f'{figures.episodes} episodes were replayed, {limits.minimum_episodes} are needed: '
            f'record {limits.minimum_episodes - figures.episodes} more'
        )
    blocking = [f'{gate.name}: {gate.text}' for gate in gates if gate.blocks]
    return '; '.join(blocking) or f'{figures.episodes} episodes, {figures.requests} requests'


def gate_report(record: GateRecord, figures: GateFigures, gates: Collection[Gate]) -> Report:
    """Return the record, and what is printed of it."""
    parts: list[Part] = [
        f'{record.candidate} against {record.parent}: {record.episodes} episodes, '
        f'{record.requests} requests',
    ]
    for kind in ('safety', 'performance'):
        parts.append(f'{kind}:')
        for gate in gates:
            if gate.kind == kind:
                parts.append(f'  {gate.name:<16} {MARKS[gate.state]:<13} {gate.text}')
    parts += [f'note: {note}' for note in figures.notes]
    parts += [f'overridden: {gate}: {reason} (by {by})' for gate, reason, by in record.overrides]
    more = f': {record.text}' if record.verdict == 'too_few' else ''
    status = TOO_FEW if record.verdict == 'too_few' else REFUSED
    return Report(
        msgspec.to_builtins(record),
        [*parts, f'{WORDS[record.verdict]}{more}'],
        PASSED if record.verdict in ADMITTED else status,
    )

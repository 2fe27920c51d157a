# SPDX-License-Identifier: Apache-2.0
"""The result of a gate as a record and as text. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
import math
from typing import Any

from lerobot_serve.router.canary.gate_record import GateRecord, TEXT_LIMIT
from lerobot_serve.tools.gate.figures import GateFigures
from lerobot_serve.tools.gate.limits import GateLimits
from lerobot_serve.tools.gate.rules import Gate, GateKind, GateState, GateVerdict

WORDS = {
    GateVerdict.PASSED: 'passed: the candidate may go on to shadow and canary',
    GateVerdict.OVERRIDDEN: 'passed by a person, against the gates below',
    GateVerdict.HELD: 'held: a performance gate failed; a better candidate, or a reason '
    '(--override GATE --reason TEXT)',
    GateVerdict.REFUSED: 'refused: a safety gate failed, which cannot be overridden',
    GateVerdict.TOO_FEW: 'too few episodes to decide',
}
MARKS = {GateState.PASSED: 'ok', GateState.FAILED: 'FAILED', GateState.UNMEASURED: 'not measured'}


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
        verdict.value,
        cut(verdict_text(figures, gates, verdict, limits)),
        figures.episodes,
        figures.requests,
        figures.digest,
        made,
        tuple(_row(gate) for gate in gates),
        tuple((name, overrides[name], by) for name in sorted(used)),
    )


def cut(text: str) -> str:
    """Return a text of at most TEXT_LIMIT bytes."""
    return text.encode()[:TEXT_LIMIT].decode(errors='ignore')


def _row(gate: Gate) -> dict[str, Any]:
    row = asdict(gate) | {'kind': gate.kind.value, 'state': gate.state.value}
    # JSON has no NaN
    row['value'] = None if math.isnan(gate.value) else gate.value
    return row


def verdict_text(
    figures: GateFigures, gates: Collection[Gate], verdict: GateVerdict, limits: GateLimits
) -> str:
    """Return the verdict with the gates that block, and what would be enough."""
    if verdict is GateVerdict.TOO_FEW:
        return (
            f'{figures.episodes} episodes were replayed, {limits.minimum_episodes} are needed: '
            f'record {limits.minimum_episodes - figures.episodes} more'
        )
    blocking = [f'{gate.name}: {gate.text}' for gate in gates if gate.blocks]
    return '; '.join(blocking) or f'{figures.episodes} episodes, {figures.requests} requests'


def as_text(record: GateRecord, figures: GateFigures, gates: Collection[Gate]) -> str:
    """Return what is printed."""
    verdict = GateVerdict(record.verdict)
    lines = [
        f'{record.candidate} against {record.parent}: {record.episodes} episodes, '
        f'{record.requests} requests',
    ]
    for kind in GateKind:
        lines.append(f'{kind.value}:')
        for gate in gates:
            if gate.kind is kind:
                lines.append(f'  {gate.name:<16} {MARKS[gate.state]:<13} {gate.text}')
    lines += [f'note: {note}' for note in figures.notes]
    lines += [f'overridden: {gate}: {reason} (by {by})' for gate, reason, by in record.overrides]
    if verdict is GateVerdict.TOO_FEW:
        lines.append(f'{WORDS[verdict]}: {record.text}')
    else:
        lines.append(WORDS[verdict])
    return '\n'.join(lines)

# SPDX-License-Identifier: Apache-2.0
"""The report of a replay. Pure functions; any thread."""

from __future__ import annotations

from math import isfinite
from typing import Any

from lerobot_serve.tools.output.report import Part, Report, Table
from lerobot_serve.tools.output.text import printable
from lerobot_serve.tools.replay.engine import MatchLevel, PolicySummary, ReplayResult

NOTES_SHOWN = 5
HEAD = ('slot', 'requests', 'identical', 'within', 'beyond', 'missing', 'worst', 'policy')


def replay_report(result: ReplayResult, fail_on: str) -> Report:
    """Return the report; docs/bags.md lists the fields of its data."""
    data = {
        'policy': result.policy,
        'is_other_policy': result.is_other_policy,
        'tolerance': result.tolerance,
        'requests': result.requests,
        **{level.value: result.count(level) for level in MatchLevel},
        'without_reply': result.without_reply,
        'without_inference': result.without_inference,
        'of_other_policies': result.others,
        'prefixes_ignored': result.prefixes_ignored,
        'slots': [_summary_json(each, result) for each in result.summaries.values()],
        'notes': result.notes,
    }
    parts: list[Part] = [f'replayed policy: {result.policy}']
    if result.is_other_policy:
        parts.append(
            'ANOTHER POLICY than the recorded ones: differences are expected and do not test it'
        )
    parts.append(Table(HEAD, [_row(each) for each in result.summaries.values()]))
    parts += [line for each in result.summaries.values() for line in _details(each, result)]
    return Report(data, [*parts, *_counts(result)], exit_status(result, fail_on))


def _row(each: PolicySummary) -> tuple[str, ...]:
    counts = [str(each.counts[level]) for level in MatchLevel]
    return each.slot, str(each.requests), *counts, f'{each.worst:.3g}', printable(each.policy)


def _details(each: PolicySummary, result: ReplayResult) -> list[str]:
    lines = []
    if each.largest_at:
        client, epoch, seq = each.largest_at
        lines.append(
            f'{each.slot}: largest difference in request {seq} of {printable(client)}, '
            f'session {epoch}'
        )
    if each.why:
        lines.append(f'{each.slot}: {printable(each.why)}')
    if each.distances:
        lines.append(f'{each.slot}: distance of the actions (mean, largest of a chunk)')
        lines += [
            f'  {printable(name)}: {mean:.4g}, {largest:.4g}'
            for name, mean, largest in each.distances.figures(result.actions)
        ]
    return lines


def _counts(result: ReplayResult) -> list[str]:
    counted = (
        (result.without_reply, 'requests without a recorded reply'),
        (result.without_inference, 'replies without inference (too late, draining)'),
        (result.others, 'replies of other policies, not compared'),
        (
            result.prefixes_ignored,
            'prefixes of the recorded policy, ignored: these chunks have no guidance',
        ),
    )
    lines = [f'{what}: {count}' for count, what in counted if count]
    lines += [printable(note) for note in result.notes[:NOTES_SHOWN]]
    if len(result.notes) > NOTES_SHOWN:
        lines.append(f'and {len(result.notes) - NOTES_SHOWN} more')
    return lines


def _summary_json(each: PolicySummary, result: ReplayResult) -> dict[str, Any]:
    at = each.largest_at
    distances = each.distances.figures(result.actions) if each.distances else []
    return {
        'slot': each.slot,
        'policy': each.policy,
        'requests': each.requests,
        **{level.value: each.counts[level] for level in MatchLevel},
        # JSON has no infinity
        'worst': each.worst if isfinite(each.worst) else None,
        'largest_at': at and {'client_id': at[0], 'session_epoch': at[1], 'seq': at[2]},
        'why': each.why,
        'divergence_per_action': {
            name: {'mean': mean, 'max': largest} for name, mean, largest in distances
        },
    }


# levels that count as failed; each includes all after it
FAIL_ON = {
    'different': (MatchLevel.WITHIN, MatchLevel.BEYOND, MatchLevel.MISSING),
    'beyond': (MatchLevel.BEYOND, MatchLevel.MISSING),
    'missing': (MatchLevel.MISSING,),
    'never': (),
}
PASSED, FAILED, NOTHING_COMPARED = 0, 3, 4


def exit_status(result: ReplayResult, fail_on: str) -> int:
    """Return PASSED, FAILED, or NOTHING_COMPARED."""
    if not result.requests:
        return NOTHING_COMPARED
    is_failed = any(result.count(level) for level in FAIL_ON[fail_on])
    return FAILED if is_failed else PASSED

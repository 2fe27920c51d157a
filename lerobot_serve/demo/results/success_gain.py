# SPDX-License-Identifier: Apache-2.0
"""What the trials of the learned versions have shown, by the traces of the router. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Any

# what the rounds must gain together, and the evidence of each promotion
GAIN, EVIDENCE = 0.2, 20.0
PASSED = 'passed'
# the router writes its trace behind the state that it publishes
WRITTEN_S = 2.0


@dataclass(frozen=True, slots=True)
class PassedComparison:
    """A candidate that the router's test has shown to be not worse; log10 of the evidence."""

    time_s: float
    evidence_log10: float
    candidate: tuple[int, int]
    champion: tuple[int, int]

    @property
    def odds(self) -> float:
        """The evidence as a number to one."""
        return math.pow(10.0, self.evidence_log10)


def passed_comparison(time_s: float, evidence: Mapping[str, Any]) -> PassedComparison:
    """Return a comparison by the evidence of its record; successes and episodes of both."""

    def counted(slot: str) -> tuple[int, int]:
        good = int(evidence.get(f'{slot}_successes') or 0)
        return good, good + int(evidence.get(f'{slot}_failures') or 0)

    evidence_log10 = float(evidence.get('log10_not_worse') or 0.0)
    return PassedComparison(time_s, evidence_log10, counted('candidate'), counted('champion'))


def with_gain(found: Mapping[str, Any], comparisons: Sequence[PassedComparison]) -> dict[str, Any]:
    """
    Return the figures of the act `learn` with the success rates and the evidence of each round;
    `shown` is false unless both are large enough.
    """
    rounds = []
    for each in found['rounds']:
        until_s = each['promoted_at_s'] + WRITTEN_S
        last = max(
            (one for one in comparisons if one.time_s <= until_s),
            key=lambda one: one.time_s,
            default=PassedComparison(0.0, 0.0, (0, 0), (0, 0)),
        )
        rounds.append(
            {
                **each,
                'evidence': round(last.odds, 1),
                'candidate': list(last.candidate),
                'champion': list(last.champion),
            }
        )
    before, after = _rate(rounds[0]['champion']), _rate(rounds[-1]['candidate'])
    is_proved = after - before >= GAIN and all(each['evidence'] >= EVIDENCE for each in rounds)
    return {
        **found,
        'shown': found['shown'] and is_proved,
        'before_percent': round(100 * before),
        'after_percent': round(100 * after),
        'rounds': rounds,
    }


def _rate(counts: Sequence[int]) -> float:
    good, count = counts
    return good / count if count else 0.0

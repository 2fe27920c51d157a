# SPDX-License-Identifier: Apache-2.0
"""
The comparison of one step; a result once shown is kept.

Each step compares only the episodes that begin in it: a candidate that has become bad is not
carried by its past. Owned by the executor thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.router.canary.trial import StepTrial


@dataclass(slots=True)
class StepComparison:
    """The highest log e in this step, and whether the candidate has passed in any."""

    passed: bool = False
    not_worse: float = 0.0
    worse: float = 0.0
    # that the champion's episodes are aborted more often
    aborted: float = 0.0

    def update(self, trial: StepTrial, terms: Terms) -> bool:
        """Weigh the outcomes; return True when the candidate passes now for the first time."""
        not_worse, worse, aborted = trial.evidence
        self.not_worse, self.worse = max(self.not_worse, not_worse), max(self.worse, worse)
        self.aborted = max(self.aborted, aborted)
        passed, self.passed = self.passed, self.passed or self.not_worse >= terms.promotion_level
        return self.passed and not passed

    def is_worse(self, terms: Terms, trials: int) -> bool:
        """Return whether the candidate was shown to be worse than the champion."""
        return self.worse >= terms.rollback_level(trials)

    def aborts_differ(self, terms: Terms) -> bool:
        """Return whether the champion was shown to be aborted more often."""
        return self.aborted >= terms.promotion_level

    def next_step(self) -> None:
        """Begin to compare from 0; what has passed has passed."""
        self.not_worse = self.worse = self.aborted = 0.0

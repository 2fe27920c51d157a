# SPDX-License-Identifier: Apache-2.0
"""
Checks that a candidate gets all episodes after a comparison that it passed, or by an operator.

The numbers of the comparison are compared with the outcomes that the router recorded since its
step began. One thread.
"""

from __future__ import annotations

from collections import Counter

from lerobot_serve.tools.audit.checks.check import RunCheck
from lerobot_serve.tools.traces.fields import number
from lerobot_serve.tools.traces.record_views import (
    CanaryRecord,
    CommandRecord,
    ReportedOutcomeRecord,
)
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun

# events after which a canary has counted nothing; `promoted` begins a step, too
BEGIN = ('planned', 'restarted', 'started')
PROMOTED, PASSED = 'promoted', 'passed'
PROMOTE_COMMAND = 'rollout promote'
ALL_EPISODES = 100
# figures of a passed comparison: slot and outcome of the episodes that they count
COUNTED = {
    'candidate_successes': ('b', 'success'),
    'candidate_failures': ('b', 'failure'),
    'champion_successes': ('a', 'success'),
    'champion_failures': ('a', 'failure'),
}
STARTED_BEFORE = 'the canary began before the recorded part'


class PromotionEvidenceCheck(RunCheck[CanaryRecord | CommandRecord | ReportedOutcomeRecord]):
    """See the module."""

    CHECKS = ('evidence',)
    RECORDS = (CanaryRecord, CommandRecord, ReportedOutcomeRecord)
    ROLES = ('router',)
    NOT_JUDGED_REASON = 'no candidate was promoted'

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        # whether this run recorded how the canary began, and whether a comparison was passed since
        self._is_known = self._has_passed = False
        self._outcomes: Counter[tuple[str, str]] = Counter()
        # a promotion without a comparison, until the command behind it is read
        self._unexplained: LinePosition | None = None

    def observe(self, record: CanaryRecord | CommandRecord | ReportedOutcomeRecord) -> None:
        if isinstance(record, ReportedOutcomeRecord):
            self._outcomes[record.slot, record.outcome] += 1
        elif isinstance(record, CommandRecord):
            if record.name == PROMOTE_COMMAND:
                self._unexplained = None
        else:
            self._on_event(record)

    def _on_event(self, record: CanaryRecord) -> None:
        self._report_unexplained()
        if record.event in BEGIN:
            self._is_known, self._has_passed = True, False
        if record.event == PASSED:
            self._check_figures(record)
            self._has_passed = True
        if record.event == PROMOTED and record.share_percent == ALL_EPISODES:
            self._judge()
        if record.event in (*BEGIN, PROMOTED):
            self._outcomes.clear()

    def _judge(self) -> None:
        if not (self._is_known or self._has_passed):
            self.tally.limitation = self.tally.why_not = STARTED_BEFORE
            return
        self.tally.judged += 1
        if not self._has_passed:
            self._unexplained = self.run.position

    def _check_figures(self, record: CanaryRecord) -> None:
        evidence = record.evidence
        reached, level = number(evidence, 'log10_not_worse'), number(evidence, 'log10_level')
        if reached is None or level is None or reached < level:
            self.tally.add_violation(f'a comparison passed with {reached} of {level} (log10)')
        for name, counted in COUNTED.items():
            claimed = number(evidence, name) or 0
            # outcomes from before this run are in another trace
            if self._is_known and claimed > self._outcomes[counted]:
                self.tally.add_violation(
                    f'{name} is {claimed:g}, and {self._outcomes[counted]} are recorded'
                )

    def _report_unexplained(self) -> None:
        if self._unexplained:
            self.tally.add_violation(
                'promoted without a passed comparison and without a command', self._unexplained
            )
            self._unexplained = None

    def finish(self) -> None:
        self._report_unexplained()

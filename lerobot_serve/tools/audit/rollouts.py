# SPDX-License-Identifier: Apache-2.0
"""
Check that a policy drives in slot b only after its gate has admitted it, and that a candidate gets
all episodes after a comparison that it passed, or by an operator. One thread.

A router that starts while a policy is on trial says so with its first poll, which may come after
the first placement. The numbers of a comparison are compared with the outcomes that the router
recorded since its step began. Routers with one shared state (`state_url`, `state_site`) run one
rollout: outcomes are in the trace of the router that received them, a comparison in that of the
one that led. So an accusation is judged when all runs are read. Clocks of two machines are not
compared: of the other routers all outcomes and all passed comparisons count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import number
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun
from lerobot_serve.trace.format.records import (
    CanaryRecord,
    CommandRecord,
    GateRecord,
    PlacementRecord,
    ReportedOutcomeRecord,
    RequestRecord,
)

CANDIDATE_SLOT = 'b'
# results with which a policy may drive, and the one that also covers what came before it
ADMITTING = ('passed', 'overridden', 'same_files')
ADMITTED_BEFORE = 'admitted_before'
NO_GATE, NONE_DROVE = 'no router has a gate_folder', 'no policy drove in slot b'
PARTIAL = 'the oldest parts of the trace, which may name the gate, were removed'
Driven = PlacementRecord | RequestRecord


class GateAdmissionCheck(RunCheck[GateRecord | Driven]):
    """A policy drives in slot b only after its gate has admitted it."""

    CHECKS = ('gated',)
    RECORDS = (GateRecord, PlacementRecord, RequestRecord)
    ROLES = ('router',)
    NOT_JUDGED_REASON = NO_GATE

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        self._admitted: set[str] = set()
        # digest -> policy and the lines that no gate covers yet
        self._open: dict[str, tuple[str, list[LinePosition]]] = {}
        self._counts: dict[str, int] = {}
        self._show = max(1, show)

    def observe(self, record: GateRecord | Driven) -> None:
        if isinstance(record, GateRecord):
            self._admit(record)
        elif self.run.parameters.get('gate_folder') and record.slot == CANDIDATE_SLOT:
            self._judge(record.policy)

    def _admit(self, record: GateRecord) -> None:
        digest = digest_of(record.policy)
        if record.result == ADMITTED_BEFORE:
            self._open.pop(digest, None)
            self._counts.pop(digest, None)
        if record.result in (*ADMITTING, ADMITTED_BEFORE):
            self._admitted.add(digest)

    def _judge(self, policy: str) -> None:
        # a request that no policy answered names none
        if not policy:
            return
        self.tally.judged += 1
        digest = digest_of(policy)
        if digest in self._admitted:
            return
        _, lines = self._open.setdefault(digest, (policy, []))
        self._counts[digest] = self._counts.get(digest, 0) + 1
        if len(lines) < self._show:
            lines.append(self.run.position)

    def finish(self) -> None:
        if self.run.parameters.get('gate_folder'):
            self.tally.why_not = NONE_DROVE
        for digest, (policy, lines) in self._open.items():
            for line in lines:
                self.tally.add_violation(f'{policy} drives, and no gate has admitted it', line)
            self.tally.violations += self._counts[digest] - len(lines)
        if self.tally.violations and self.run.is_partial:
            self.tally.retract(PARTIAL)


def digest_of(fingerprint: str) -> str:
    """Return the digest of a policy; the name before the @ may differ by server."""
    return fingerprint.rpartition('@')[2]


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
OTHERS_MISSING = 'the traces of the other routers with this state_url are missing'
INCOMPLETE = 'the trace of a router is incomplete, and may have the evidence'
Counted = tuple[str, str]


class UnprovenFigure(NamedTuple):
    """More outcomes than this run recorded, at its line."""

    position: LinePosition
    name: str
    claimed: float
    recorded: int


class UnprovenPromotion(NamedTuple):
    """A promotion of a policy without a comparison and a command in this run, at its line."""

    position: LinePosition
    policy: str


class PromotionEvidenceCheck(RunCheck[CanaryRecord | CommandRecord | ReportedOutcomeRecord]):
    """See the module; `judge_promotions` ends it."""

    CHECKS = ('evidence',)
    RECORDS = (CanaryRecord, CommandRecord, ReportedOutcomeRecord)
    ROLES = ('router',)
    NOT_JUDGED_REASON = 'no candidate was promoted'

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        # whether this run recorded how the canary began, and whether a comparison was passed since
        self._is_known = self._has_passed = False
        # since the step began, and in the whole run
        self._outcomes: Counter[Counted] = Counter()
        self._all_outcomes: Counter[Counted] = Counter()
        self._passed: set[str] = set()
        # a promotion without a comparison, until the command behind it is read
        self._unexplained: UnprovenPromotion | None = None
        self._unproven: list[UnprovenFigure | UnprovenPromotion] = []

    @property
    def site(self) -> tuple[Any, Any] | None:
        """What the routers of one rollout have in common, None without a shared state."""
        values = self.run.header_parameters
        url = values.get('state_url')
        return (url, values.get('state_site')) if url else None

    def observe(self, record: CanaryRecord | CommandRecord | ReportedOutcomeRecord) -> None:
        if isinstance(record, ReportedOutcomeRecord):
            self._outcomes[record.slot, record.outcome] += 1
            self._all_outcomes[record.slot, record.outcome] += 1
        elif isinstance(record, CommandRecord):
            if record.name == PROMOTE_COMMAND:
                self._unexplained = None
        else:
            self._on_event(record)

    def _on_event(self, record: CanaryRecord) -> None:
        self.finish()
        if record.event in BEGIN:
            self._is_known, self._has_passed = True, False
        if record.event == PASSED:
            self._check_figures(record)
            self._has_passed = True
            self._passed.add(record.policy)
        if record.event == PROMOTED and record.share_percent == ALL_EPISODES:
            self._judge(record)
        if record.event in (*BEGIN, PROMOTED):
            self._outcomes.clear()

    def _judge(self, record: CanaryRecord) -> None:
        if not (self._is_known or self._has_passed):
            self.tally.limitation = self.tally.why_not = STARTED_BEFORE
            return
        self.tally.judged += 1
        if not self._has_passed:
            self._unexplained = UnprovenPromotion(self.run.position, record.policy)

    def _check_figures(self, record: CanaryRecord) -> None:
        evidence = record.evidence or {}
        reached, level = number(evidence, 'log10_not_worse'), number(evidence, 'log10_level')
        if reached is None or level is None or reached < level:
            self.tally.add_violation(f'a comparison passed with {reached} of {level} (log10)')
        for name, counted in COUNTED.items():
            claimed, recorded = number(evidence, name) or 0, self._outcomes[counted]
            # outcomes from before this run are in another trace
            if self._is_known and claimed > recorded:
                figure = UnprovenFigure(self.run.position, name, claimed, recorded)
                self._unproven.append(figure)

    def finish(self) -> None:
        """Note a promotion that no command followed."""
        if self._unexplained:
            self._unproven.append(self._unexplained)
            self._unexplained = None

    def judge(self, others: Sequence[PromotionEvidenceCheck]) -> None:
        """Accuse of what is in this run alone, unless `others` of its site explain it."""
        if not self.tally.judged and any(each.tally.judged for each in others):
            # one router of a site promotes
            self.tally.why_not = self.tally.limitation
        texts = [(each.position, self._accusation(each, others)) for each in self._unproven]
        accusations = [(position, text) for position, text in texts if text]
        why_not = self._why_not(others) if accusations else ''
        if why_not:
            self.tally.judged, self.tally.why_not = 0, why_not
            return
        for position, text in accusations:
            self.tally.add_violation(text, position)

    def _accusation(
        self,
        unproven: UnprovenFigure | UnprovenPromotion,
        others: Sequence[PromotionEvidenceCheck],
    ) -> str:
        if isinstance(unproven, UnprovenPromotion):
            is_explained = any(unproven.policy in each._passed for each in others)
            why = 'promoted without a passed comparison and without a command'
            return '' if is_explained else why
        counted = COUNTED[unproven.name]
        recorded = unproven.recorded + sum(each._all_outcomes[counted] for each in others)
        if unproven.claimed <= recorded:
            return ''
        return f'{unproven.name} is {unproven.claimed:g}, and {recorded} are recorded'

    def _why_not(self, others: Sequence[PromotionEvidenceCheck]) -> str:
        if self.site and {each.run.node for each in others} <= {self.run.node}:
            return OTHERS_MISSING
        if self.run.is_damaged or not all(each.run.is_complete for each in others):
            return INCOMPLETE
        return ''


def judge_promotions(checks: Sequence[PromotionEvidenceCheck]) -> None:
    """Judge the promotions of all routers; call when all runs are read and finished."""
    for check in checks:
        of_site = [each for each in checks if check.site and each.site == check.site]
        check.judge([each for each in of_site if each is not check])

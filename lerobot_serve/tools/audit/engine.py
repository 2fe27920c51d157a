# SPDX-License-Identifier: Apache-2.0
"""Runs all checks over all runs and combines the results. One thread; only reads files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from lerobot_serve.tools.audit.check import (
    CHECKS,
    CheckTally,
    ROLLOUT_CHECKS,
    RunCheck,
    TRACE_CHECKS,
    Violation,
)
from lerobot_serve.tools.audit.chunk_rows import ActionAgeCheck, ChunkRowsCheck
from lerobot_serve.tools.audit.command_limits import (
    CommandLimitsCheck,
    UncagedSessionCounter,
    UncagedSessions,
)
from lerobot_serve.tools.audit.requests import (
    OneInFlightCheck,
    PrefixPolicyCheck,
    RequestEndCheck,
)
from lerobot_serve.tools.audit.rollouts import (
    GateAdmissionCheck,
    judge_promotions,
    PromotionEvidenceCheck,
)
from lerobot_serve.tools.audit.sticky_slots import StickySlotCheck
from lerobot_serve.tools.audit.trace_integrity import TraceIntegrityCheck
from lerobot_serve.tools.traces.reader import ReportBytes
from lerobot_serve.tools.traces.trace_run import RecordSource, TraceQuery, TraceRun
from lerobot_serve.trace.format.records import TraceRecord

# checks one record
Observe = Callable[[TraceRecord], None]

# checks of one run; integrity comes first, since the others use its result
RUN_CHECKS: tuple[type[RunCheck[Any]], ...] = (
    TraceIntegrityCheck,
    ActionAgeCheck,
    CommandLimitsCheck,
    ChunkRowsCheck,
    OneInFlightCheck,
    RequestEndCheck,
    PrefixPolicyCheck,
    GateAdmissionCheck,
    PromotionEvidenceCheck,
)
NOT_COVERED_REASON = 'no trace covers this check'


class CheckStatus(Enum):
    """Result of a check."""

    HOLDS = 'holds'
    # the oldest parts were removed, or a trace lacks what the check needs
    HOLDS_AS_RECORDED = 'holds_as_recorded'
    # the end of a trace, a part or records are missing
    INCOMPLETE = 'incomplete'
    VIOLATED = 'violated'
    NOT_JUDGED = 'not_judged'


@dataclass(frozen=True, slots=True)
class CheckResult:
    """
    Result of one check over all runs.

    judged       number of rows, requests, episodes or traces checked
    judged_runs  number of traces with something to judge, of `runs` that the check applies to
    gaps         number of missing items; `shown` lists them, too
    why_not      reason why it was not judged, or not in all runs
    """

    check: str
    outcome: CheckStatus
    judged: int
    judged_runs: int
    runs: int
    violations: int
    gaps: int
    shown: tuple[Violation, ...]
    why_not: str


@dataclass(frozen=True, slots=True)
class AuditResult:
    """
    Result of an audit; `joined` of the `episodes` appear in more than one trace, `uncaged` are
    sessions that no check about commands covers.
    """

    runs: tuple[TraceRun, ...]
    results: tuple[CheckResult, ...]
    episodes: int
    joined: int
    uncaged: UncagedSessions

    @property
    def outcome(self) -> CheckStatus:
        """
        The worst result. The checks of the trace itself do not count as proof about the commands.
        """
        if any(result.outcome is CheckStatus.VIOLATED for result in self.results):
            return CheckStatus.VIOLATED
        apart = TRACE_CHECKS | ROLLOUT_CHECKS
        driving = [each.outcome for each in self.results if each.check not in apart]
        if all(outcome is CheckStatus.NOT_JUDGED for outcome in driving):
            return CheckStatus.NOT_JUDGED
        rollouts = [each.outcome for each in self.results if each.check in ROLLOUT_CHECKS]
        driving += [outcome for outcome in rollouts if outcome is not CheckStatus.NOT_JUDGED]
        if any(result.outcome is CheckStatus.INCOMPLETE for result in self.results):
            return CheckStatus.INCOMPLETE
        is_all = all(outcome is CheckStatus.HOLDS for outcome in driving)
        return CheckStatus.HOLDS if is_all else CheckStatus.HOLDS_AS_RECORDED


def run_audit(
    paths: Iterable[Path | str],
    *,
    show: int = 5,
    sources: Sequence[RecordSource] = (),
    on_bytes_read: ReportBytes | None = None,
) -> AuditResult:
    """Run all checks over traces and further sources. Raises TraceError."""
    query = TraceQuery(paths, sources=sources, on_bytes_read=on_bytes_read)
    sticky, uncaged = StickySlotCheck(show=show), UncagedSessionCounter()
    checks: dict[int, list[RunCheck[Any]]] = {}
    observers: dict[int, dict[type[TraceRecord], list[Observe]]] = {}
    for _, run, record in query.by_time():
        if run.number not in checks:
            checks[run.number] = checks_for(run, show)
            observers[run.number] = observers_by_record(checks[run.number])
        for observe in observers[run.number].get(type(record), ()):
            observe(record)
        sticky.observe(run, record)
        uncaged.observe(record)
    # an empty file, as of a power failure, has no first record
    checks |= {r.number: checks_for(r, show) for r in query.runs if r.number not in checks}
    judging = [each for of_run in checks.values() for each in of_run]
    for check in judging:
        check.finish()
    judge_promotions([each for each in judging if isinstance(each, PromotionEvidenceCheck)])
    sticky.finish(query.runs)
    tallies = [tally for each in judging for tally in each.tallies]
    tallies += sticky.tallies
    results = [combine(name, [t for t in tallies if t.check == name], show) for name in CHECKS]
    return AuditResult(
        tuple(query.runs), tuple(results), sticky.episodes, sticky.joined, uncaged.found()
    )


def checks_for(run: TraceRun, show: int) -> list[RunCheck[Any]]:
    """Create the checks for the role of the run; call after its first record is read."""
    suited = [kind for kind in RUN_CHECKS if not kind.ROLES or run.role in kind.ROLES]
    return [
        kind(run, show=show) for kind in suited if run.is_trace or kind is not TraceIntegrityCheck
    ]


def observers_by_record(
    checks: Iterable[RunCheck[Any]],
) -> dict[type[TraceRecord], list[Observe]]:
    """Return the observing methods for each kind of record."""
    observers: dict[type[TraceRecord], list[Observe]] = {}
    for check in checks:
        for kind in check.RECORDS:
            observers.setdefault(kind, []).append(check.observe)
    return observers


def combine(check: str, tallies: list[CheckTally], show: int) -> CheckResult:
    """Combine the tallies of all runs."""
    judged = [tally for tally in tallies if tally.judged]
    # a trace without such records is complete for this check
    reasons = [tally.limitation if tally.judged else tally.why_not for tally in tallies]
    missing = [reason for reason in reasons if reason]
    violations = sum(tally.violations for tally in tallies)
    gaps = sum(tally.gaps for tally in tallies)
    if violations:
        outcome = CheckStatus.VIOLATED
    elif gaps:
        outcome = CheckStatus.INCOMPLETE
    elif not judged:
        outcome = CheckStatus.NOT_JUDGED
    elif missing or not all(tally.run.is_complete for tally in tallies):
        outcome = CheckStatus.HOLDS_AS_RECORDED
    else:
        outcome = CheckStatus.HOLDS
    shown = [violation for tally in tallies for violation in tally.shown][:show]
    return CheckResult(
        check=check,
        outcome=outcome,
        judged=sum(tally.judged for tally in judged),
        judged_runs=len(judged),
        runs=len(tallies),
        violations=violations,
        gaps=gaps,
        shown=tuple(shown),
        why_not=missing[0] if missing else NOT_COVERED_REASON if not tallies else '',
    )

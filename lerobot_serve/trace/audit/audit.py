"""All checks over all runs, and the result. One thread; reads files, writes none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from lerobot_serve.trace.audit.age import Age
from lerobot_serve.trace.audit.commands import Commands
from lerobot_serve.trace.audit.ended import Ended
from lerobot_serve.trace.audit.fields import Record
from lerobot_serve.trace.audit.flights import OneInFlight
from lerobot_serve.trace.audit.prefix import Prefix
from lerobot_serve.trace.audit.reading import open_runs, Records, side_by_side
from lerobot_serve.trace.audit.rows import Rows
from lerobot_serve.trace.audit.run import Run
from lerobot_serve.trace.audit.sticky import KINDS as STICKY_KINDS
from lerobot_serve.trace.audit.sticky import Sticky
from lerobot_serve.trace.audit.tally import CHECKS, OF_THE_TRACE, Tally, Violation, Watcher
from lerobot_serve.trace.audit.whole import Whole

# of one run each; the trace itself first, since the others ask what it found
WATCHERS: tuple[type[Watcher], ...] = (Whole, Age, Commands, Rows, OneInFlight, Ended, Prefix)
SHOWN = 5
RUNS_APART = 1 << 32


class Outcome(Enum):
    """What there is to say of a check."""

    HOLDS = 'holds'
    # the oldest parts were removed, or one of the traces does not record what the check needs
    HOLDS_AS_RECORDED = 'holds_as_recorded'
    # the end of a trace, a part or records are missing that should be there
    INCOMPLETE = 'incomplete'
    VIOLATED = 'violated'
    NOT_JUDGED = 'not_judged'


@dataclass(frozen=True, slots=True)
class Result:
    """
    What came of one check.

    judged       what was looked at: rows, requests, episodes or traces
    judged_runs  of so many traces, `runs` there are that it is for
    gaps         of so many things that are missing; `shown` has them, too
    why_not      why it was not judged, or not everywhere
    """

    check: str
    outcome: Outcome
    judged: int
    judged_runs: int
    runs: int
    violations: int
    gaps: int
    shown: tuple[Violation, ...]
    why_not: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The whole result; `episodes` were seen, `joined` of them in more than one trace."""

    runs: tuple[Run, ...]
    results: tuple[Result, ...]
    episodes: int
    joined: int

    @property
    def outcome(self) -> Outcome:
        """The worst of the checks; those of the trace itself prove no driving."""
        if any(result.outcome is Outcome.VIOLATED for result in self.results):
            return Outcome.VIOLATED
        driving = [each.outcome for each in self.results if each.check not in OF_THE_TRACE]
        if all(outcome is Outcome.NOT_JUDGED for outcome in driving):
            return Outcome.NOT_JUDGED
        if any(result.outcome is Outcome.INCOMPLETE for result in self.results):
            return Outcome.INCOMPLETE
        is_all = all(outcome is Outcome.HOLDS for outcome in driving)
        return Outcome.HOLDS if is_all else Outcome.HOLDS_AS_RECORDED


class Source(Protocol):
    """Records of several runs in one, for example a bag; `runs` is complete once it was read."""

    runs: list[Run]

    def read(self, first_number: int) -> Records:
        """Hand out all records in the order of time; runs are numbered from `first_number`."""


def audit(
    paths: Iterable[Path | str], *, show: int = SHOWN, sources: Sequence[Source] = ()
) -> Audit:
    """Return what all checks say of the traces. Raises TraceError."""
    runs = open_runs(paths)
    # more runs than a bag can have robots
    more = [source.read(number * RUNS_APART) for number, source in enumerate(sources, 1)]
    sticky = Sticky(show=show)
    watchers: dict[int, list[Watcher]] = {}
    seers: dict[int, dict[str, list[Callable[[Record], None]]]] = {}
    for run, record in side_by_side(runs, more):
        if run.number not in watchers:
            watchers[run.number] = watchers_of(run, show)
            seers[run.number] = by_kind(watchers[run.number])
        kind = record['kind']
        for see in seers[run.number].get(kind, ()):
            see(record)
        if kind in STICKY_KINDS:
            sticky.see(run, record)
    runs += [run for source in sources for run in source.runs]
    for watcher in (each for of_run in watchers.values() for each in of_run):
        watcher.finish()
    sticky.finish(runs)
    tallies = [tally for of_run in watchers.values() for each in of_run for tally in each.tallies]
    tallies += sticky.tallies
    results = [result(check, [t for t in tallies if t.check == check], show) for check in CHECKS]
    return Audit(tuple(runs), tuple(results), sticky.episodes, sticky.joined)


def watchers_of(run: Run, show: int) -> list[Watcher]:
    """Return one of each that suits the run's role; its first record was read."""
    suited = [kind for kind in WATCHERS if not kind.ROLES or run.role in kind.ROLES]
    return [kind(run, show=show) for kind in suited if run.is_trace or kind is not Whole]


def by_kind(watchers: Iterable[Watcher]) -> dict[str, list[Callable[[Record], None]]]:
    """Return who is to see a record of each kind."""
    found: dict[str, list[Callable[[Record], None]]] = {}
    for watcher in watchers:
        for kind in watcher.KINDS:
            found.setdefault(kind, []).append(watcher.see)
    return found


def result(check: str, tallies: list[Tally], show: int) -> Result:
    """Return what the tallies of all runs say together."""
    judged = [tally for tally in tallies if tally.judged]
    # a trace that has nothing of the kind leaves nothing open
    reasons = [tally.partly if tally.judged else tally.why_not for tally in tallies]
    missing = [reason for reason in reasons if reason]
    violations = sum(tally.violations for tally in tallies)
    gaps = sum(tally.gaps for tally in tallies)
    if violations:
        outcome = Outcome.VIOLATED
    elif gaps:
        outcome = Outcome.INCOMPLETE
    elif not judged:
        outcome = Outcome.NOT_JUDGED
    elif missing or not all(tally.run.is_complete for tally in tallies):
        outcome = Outcome.HOLDS_AS_RECORDED
    else:
        outcome = Outcome.HOLDS
    shown = [violation for tally in tallies for violation in tally.shown][:show]
    return Result(
        check,
        outcome,
        sum(tally.judged for tally in judged),
        len(judged),
        len(tallies),
        violations,
        gaps,
        tuple(shown),
        missing[0] if missing else NOBODY if not tallies else '',
    )


NOBODY = 'none of the traces tells of it'

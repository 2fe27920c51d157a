# SPDX-License-Identifier: Apache-2.0
"""Base class of the checks of one run, and their counts of violations and gaps. One thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lerobot_serve.tools.traces.fields import Record
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun

# check -> the statement that it verifies
CHECKS = {
    'age': 'no action was executed that is older than max_action_age_s',
    'finite': 'every command has finite values only',
    'position': 'no command is outside its limits',
    'step': 'no command is further from the one before than a step may go',
    'rows': 'every action played is a row of a chunk, unchanged, and in order',
    'sticky': 'an episode keeps its slot, unless a decision moved it',
    'one_in_flight': 'no request was sent before the one before it had ended',
    'prefix': 'a prefix of another policy was ignored',
    'ended': 'every request has an end',
    'drops': 'the records of what was lost add up to the footer',
    'whole': 'the trace has no damage, all its footers, and lost nothing',
}
# of the trace itself: these alone say nothing about the commands
TRACE_CHECKS = frozenset({'drops', 'whole'})


@dataclass(frozen=True, slots=True)
class Violation:
    """One line that violates a check, or after which a record is missing, and the reason."""

    check: str
    file: str
    line: int
    text: str


class CheckTally:
    """
    Counts of one check in one run.

    `judged` counts what was checked, `gaps` what is missing. `why_not` is the reason when nothing
    was judged, `partly` names what the check skipped.
    """

    def __init__(self, check: str, run: TraceRun, why_not: str = '', *, show: int) -> None:
        self.check, self.run, self.why_not = check, run, why_not
        self.partly = ''
        self.judged = self.violations = self.gaps = 0
        self.shown: list[Violation] = []
        self._show = show

    def add_violation(self, text: str, place: LinePosition | None = None) -> None:
        """Count a violation at a line, by default the current one."""
        self.violations += 1
        self._show_violation(text, place)

    def add_gap(self, text: str, place: LinePosition | None = None) -> None:
        """Count a missing record; a gap is no violation."""
        self.gaps += 1
        self._show_violation(text, place)

    def _show_violation(self, text: str, place: LinePosition | None) -> None:
        if len(self.shown) < self._show:
            self.shown.append(Violation(self.check, *(place or self.run.place), text))

    def retract(self, why_not: str) -> None:
        """Discard the violations: the traces do not prove them."""
        self.judged = self.violations = 0
        self.shown, self.why_not = [], why_not


class RunCheck:
    """
    Checks the records of some kinds of one run and counts in its tallies.

    A subclass names its checks, the record kinds it observes and the roles it applies to (all when
    none is named).
    """

    CHECKS: Sequence[str] = ()
    KINDS: Sequence[str] = ()
    ROLES: Sequence[str] = ()
    NOT_JUDGED_REASON = ''

    def __init__(self, run: TraceRun, *, show: int) -> None:
        self.run = run
        self.tallies = [
            CheckTally(check, run, self.NOT_JUDGED_REASON, show=show) for check in self.CHECKS
        ]

    @property
    def tally(self) -> CheckTally:
        """The first tally; most checks have only one."""
        return self.tallies[0]

    def observe(self, record: Record) -> None:
        """Check the last record that the run yielded."""
        raise NotImplementedError

    def finish(self) -> None:
        """Judge what is only known at the end of the run."""

# SPDX-License-Identifier: Apache-2.0
"""Base class of the checks of one run, and their counts of violations and gaps. One thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun
from lerobot_serve.trace.format.records import TraceRecord

Checked = TypeVar('Checked', bound=TraceRecord)

# check -> the statement that it verifies
CHECKS = {
    'age': 'no executed action is older than max_action_age_s',
    'finite': 'every command has finite values only',
    'position': 'no command is outside its limits',
    'step': 'no command differs from the previous one by more than a step allows',
    'rows': 'every executed action is a row of a chunk, unchanged and in order',
    'sticky': 'an episode keeps its slot, unless a decision moved it',
    'one_in_flight': 'no request was sent before the previous one had ended',
    'prefix': 'a prefix of another policy was ignored',
    'ended': 'every request has an end',
    'gated': 'a policy drives in slot b only after its gate has admitted it',
    'evidence': 'a candidate is promoted by a passed comparison, or by an operator',
    'drops': 'the records of losses add up to the footer',
    'whole': 'the trace is undamaged, has all its footers, and lost nothing',
}
# checks of the trace itself: alone they prove nothing about the commands
TRACE_CHECKS = frozenset({'drops', 'whole'})
# checks of rollouts: a fleet without one has nothing to judge
ROLLOUT_CHECKS = frozenset({'gated', 'evidence'})


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

    `judged` counts checked items, `gaps` missing ones. `why_not` is the reason if nothing was
    judged, `limitation` names the skipped part.
    """

    def __init__(self, check: str, run: TraceRun, why_not: str = '', *, show: int) -> None:
        self.check, self.run, self.why_not = check, run, why_not
        self.limitation = ''
        self.judged = self.violations = self.gaps = 0
        self.shown: list[Violation] = []
        self._show = show

    def add_violation(self, text: str, position: LinePosition | None = None) -> None:
        """Count a violation at a line, by default the current one."""
        self.violations += 1
        self._show_violation(text, position)

    def add_gap(self, text: str, position: LinePosition | None = None) -> None:
        """Count a missing record; a gap is not a violation."""
        self.gaps += 1
        self._show_violation(text, position)

    def _show_violation(self, text: str, position: LinePosition | None) -> None:
        if len(self.shown) < self._show:
            self.shown.append(Violation(self.check, *(position or self.run.position), text))

    def retract(self, why_not: str) -> None:
        """Discard the violations: the traces do not prove them."""
        self.judged = self.violations = 0
        self.shown, self.why_not = [], why_not


class RunCheck(Generic[Checked]):
    """
    Checks records of certain kinds in one run and counts in its tallies.

    A subclass names its checks, the records that it observes and the roles it applies to (all when
    none is named).
    """

    CHECKS: tuple[str, ...] = ()
    RECORDS: tuple[type[Checked], ...] = ()
    ROLES: tuple[str, ...] = ()
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

    def observe(self, record: Checked) -> None:
        """Check the last record that the run yielded, one of RECORDS."""
        raise NotImplementedError

    def finish(self) -> None:
        """Run the checks that need the whole run."""

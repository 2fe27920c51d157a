"""What one check found in one run: what was judged, what was violated. Plain; one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lerobot_serve.tools.traces.fields import Record
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun

# check -> what it says when it holds
CHECKS = {
    'age': 'no action was executed that is older than max_action_age_s',
    'finite': 'every command is made of numbers',
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
# of the trace itself: these alone say nothing of the driving
TRACE_CHECKS = frozenset({'drops', 'whole'})


@dataclass(frozen=True, slots=True)
class Violation:
    """One line that breaks a check, or behind which something is missing, and how."""

    check: str
    file: str
    line: int
    text: str


class CheckTally:
    """
    `judged` counts what could be looked at, `gaps` what is missing; `why_not` says why it may be
    nothing, `partly` what of the check was left out.
    """

    def __init__(self, check: str, run: TraceRun, why_not: str = '', *, show: int) -> None:
        self.check, self.run, self.why_not = check, run, why_not
        self.partly = ''
        self.judged = self.violations = self.gaps = 0
        self.shown: list[Violation] = []
        self._show = show

    def violated(self, text: str, place: LinePosition | None = None) -> None:
        """Count a violation at a line, the present one when none is named."""
        self.violations += 1
        self._list(text, place)

    def incomplete(self, text: str, place: LinePosition | None = None) -> None:
        """Count what is missing there; it contradicts nothing."""
        self.gaps += 1
        self._list(text, place)

    def _list(self, text: str, place: LinePosition | None) -> None:
        if len(self.shown) < self._show:
            self.shown.append(Violation(self.check, *(place or self.run.place), text))

    def withdraw(self, why_not: str) -> None:
        """What was found proves nothing."""
        self.judged = self.violations = 0
        self.shown, self.why_not = [], why_not


class RunCheck:
    """
    Looks at the records of some kinds of one run and tells its tallies.

    A subclass names its checks, the kinds it wants to see and the roles it is for (all when none
    is named).
    """

    CHECKS: Sequence[str] = ()
    KINDS: Sequence[str] = ()
    ROLES: Sequence[str] = ()
    WHY_NOT = ''

    def __init__(self, run: TraceRun, *, show: int) -> None:
        self.run = run
        self.tallies = [CheckTally(check, run, self.WHY_NOT, show=show) for check in self.CHECKS]

    @property
    def tally(self) -> CheckTally:
        """The first of its tallies; most have one."""
        return self.tallies[0]

    def see(self, record: Record) -> None:
        """Look at the record that the run handed out last."""
        raise NotImplementedError

    def finish(self) -> None:
        """The run is at its end."""

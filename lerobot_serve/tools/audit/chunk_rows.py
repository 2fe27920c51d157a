# SPDX-License-Identifier: Apache-2.0
"""
Checks that executed actions are not too old, and rows of chunks, unchanged and in order.

Within one chunk the row number never decreases, and no chunk follows a later one. A row has the
same values each time it appears. With `interpolation` the steps between two rows carry the number
of the later one, so their values are not judged; their order is. One thread.
"""

from __future__ import annotations

from struct import error, pack
from typing import Any, NamedTuple

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import is_later_session, number
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.records import ExecutedRecord

# rounding of a nanosecond clock written in seconds
ROUNDING_S = 1e-6


class PlayedRow(NamedTuple):
    """Origin and values of one executed action."""

    epoch: int
    seq: int
    row: int
    raw: list[Any] | None


class ChunkRowsCheck(RunCheck[ExecutedRecord]):
    """Checks that executed actions are rows of chunks, unchanged and in order."""

    CHECKS = ('rows',)
    RECORDS = (ExecutedRecord,)
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'no action of a chunk was executed'

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        self._last: PlayedRow | None = None

    def observe(self, record: ExecutedRecord) -> None:
        if not record.is_played:
            return
        self.tally.judged += 1
        wrong = self._violation_text(record)
        if wrong:
            self.tally.add_violation(wrong)

    def _violation_text(self, record: ExecutedRecord) -> str:
        """Return the violation, empty when there is none."""
        raw = record.raw_actions
        if record.cage_result == 'pass' and not is_same_float32(raw, record.commanded):
            return 'verdict is pass, but the commanded values differ from the chunk row'
        epoch, seq, chunk_row = record.session_epoch, record.seq, record.chunk_row
        if epoch is None or seq is None or chunk_row is None:
            return 'session_epoch, seq or chunk_row is missing: origin of the action is unknown'
        row = PlayedRow(epoch, seq, chunk_row, raw)
        wrong = self._last and out_of_order(self._last, row)
        if wrong:
            # a row out of order is not a reference for the next one
            return wrong
        before, self._last = self._last, row
        if self.run.parameters.get('interpolation_multiplier', 1) != 1:
            self.tally.limitation = 'with interpolation, values between two rows are not judged'
        elif before and before[:3] == row[:3] and not is_same_float32(before.raw, raw):
            return f'row {row.row} of request {row.seq} differs from the step before'
        return ''


def out_of_order(before: PlayedRow, row: PlayedRow) -> str:
    """Return why a row may not follow another, empty when it may."""
    if row.epoch != before.epoch:
        is_later = is_later_session(row.epoch, before.epoch)
        return '' if is_later else f'session {row.epoch} follows {before.epoch}'
    if row.seq != before.seq:
        is_later = row.seq > before.seq
        return '' if is_later else f'request {row.seq} follows {before.seq}'
    is_later = row.row >= before.row
    return '' if is_later else f'row {row.row} of request {row.seq} follows row {before.row}'


def is_same_float32(first: list[Any] | None, second: list[Any] | None) -> bool:
    """Return whether two actions are equal as float32; one may be written as double."""
    if first is None or second is None or len(first) != len(second):
        return False
    try:
        return first == second or pack(f'{len(first)}f', *first) == pack(
            f'{len(second)}f', *second
        )
    except (error, OverflowError):
        return False


class ActionAgeCheck(RunCheck[ExecutedRecord]):
    """Checks that no executed action is older than max_action_age_s of its edge."""

    CHECKS = ('age',)
    RECORDS = (ExecutedRecord,)
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'no action of a chunk was executed'

    def observe(self, record: ExecutedRecord) -> None:
        if not record.is_played:
            return
        bound_s = number(self.run.parameters, 'max_action_age_s')
        if bound_s is None:
            self.tally.why_not = self.run.no_age_reason
            return
        self.tally.judged += 1
        age_s = record.age_s
        if age_s is None or age_s < 0:
            self.tally.add_violation(f'age_s is {age_s!r}: age of the action is unknown')
        elif age_s > bound_s + ROUNDING_S:
            self.tally.add_violation(f'{age_s:g} s old, max_action_age_s is {bound_s:g}')

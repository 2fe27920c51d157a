"""
Nothing is blended: what is played are the rows of chunks, unchanged and in order.

Within one chunk the row never falls, and no chunk is followed by an earlier one. One row is the
same numbers each time it appears. With `interpolation` the steps between two rows have the number
of the later one, so that their numbers cannot be judged; their order can. One thread.
"""

from __future__ import annotations

from struct import error, pack
from typing import Any, NamedTuple

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import integer, is_later_session, Record, text


class PlayedRow(NamedTuple):
    """Where an action comes from, and what it was."""

    epoch: int
    seq: int
    row: int
    raw: Any


class ChunkRowsCheck(RunCheck):
    """See the module."""

    CHECKS = ('rows',)
    KINDS = ('executed',)
    ROLES = ('edge',)
    WHY_NOT = 'no action of a chunk was executed'

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._last: PlayedRow | None = None

    def see(self, record: Record) -> None:
        if text(record, 'rung') != 'play':
            return
        self.tally.judged += 1
        wrong = self._violation_text(record)
        if wrong:
            self.tally.violated(wrong)

    def _violation_text(self, record: Record) -> str:
        """Return what is wrong, empty when nothing is."""
        raw = record.get('raw')
        if text(record, 'verdict') == 'pass' and not is_same_float32(raw, record.get('caged')):
            return 'it passed the cage, but what was commanded is not what was wanted'
        numbers = [integer(record, name) for name in ('session_epoch', 'seq', 'chunk_row')]
        if None in numbers:
            return 'it names no session_epoch, seq and chunk_row: nobody knows whence it comes'
        row = PlayedRow(*numbers, raw)
        wrong = self._last and out_of_order(self._last, row)
        if wrong:
            # one that does not belong here is nothing to measure the next one by
            return wrong
        before, self._last = self._last, row
        if self.run.parameters.get('interpolation', 1) != 1:
            self.tally.partly = 'with interpolation, what is between two rows is not judged'
        elif before and before[:3] == row[:3] and not is_same_float32(before.raw, raw):
            return f'row {row.row} of request {row.seq} is not what it was a step before'
        return ''


def out_of_order(before: PlayedRow, row: PlayedRow) -> str:
    """Return how a row may not follow on another, empty when it may."""
    if row.epoch != before.epoch:
        is_later = is_later_session(row.epoch, before.epoch)
        return '' if is_later else f'session {row.epoch} comes behind {before.epoch}'
    if row.seq != before.seq:
        is_later = row.seq > before.seq
        return '' if is_later else f'request {row.seq} comes behind {before.seq}'
    is_later = row.row >= before.row
    return '' if is_later else f'row {row.row} of request {row.seq} comes behind {before.row}'


def is_same_float32(first: Any, second: Any) -> bool:
    """Tell whether two actions are the same float32; one of them may be written as double."""
    if type(first) is not list or type(second) is not list or len(first) != len(second):
        return False
    try:
        return first == second or pack(f'{len(first)}f', *first) == pack(
            f'{len(second)}f', *second
        )
    except (error, OverflowError):
        return False

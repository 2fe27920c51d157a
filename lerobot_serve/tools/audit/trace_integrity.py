# SPDX-License-Identifier: Apache-2.0
"""
Checks that the trace is complete and undamaged and that its losses match the footer.

Damage and wrong counts are violations. A missing end, part or record is a gap: the trace is
incomplete. Both mark the run as damaged, so that the other checks hold for the recorded part only.
One thread.
"""

from __future__ import annotations

from collections import Counter

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun
from lerobot_serve.trace.format.records import (
    DamagedRecord,
    DropRecord,
    FooterRecord,
    HeaderRecord,
    TraceRecord,
)

TRACE_LOSS_PREFIX = 'trace_'
# losses after the last drop record
UNRECORDABLE_LOSSES = frozenset({'trace_closed'})


class TraceIntegrityCheck(RunCheck[TraceRecord]):
    """See the module."""

    CHECKS = ('whole', 'drops')
    RECORDS = (HeaderRecord, FooterRecord, DropRecord, DamagedRecord)

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        self._drops = self.tallies[1]
        self._drops.why_not = 'the run has no end'
        self.tally.judged = 1
        self._footer: FooterRecord | None = None
        self._footer_position: LinePosition | None = None
        self._torn_position: LinePosition | None = None
        self._recorded_losses: Counter[str] = Counter()

    def observe(self, record: TraceRecord) -> None:
        if isinstance(record, DamagedRecord):
            self._on_damage(record)
        elif isinstance(record, FooterRecord):
            self._on_footer(record)
        elif isinstance(record, DropRecord):
            self._on_drop(record)
        ended = self.run.previous_part_position
        if self.run.position.line == 1 and ended:
            self._on_next_part(record, ended)

    def finish(self) -> None:
        """
        Check that a closed run has a footer; a torn last line means that the process was killed.
        """
        position = self.run.position
        if self._footer is None or self._footer_position != position:
            self._add_missing(f'no footer: {self._ending}', position)
        elif self._footer.end_reason != 'closed':
            self._add_missing(
                'the run continues after its last part, or the process was killed', position
            )
        else:
            self._compare_losses(self._footer)

    @property
    def _ending(self) -> str:
        if not self.run.lines:
            return 'the file is empty'
        if self._torn_position:
            return 'last line torn, process killed'
        return 'process killed or still running'

    def _on_damage(self, record: DamagedRecord) -> None:
        if record.reason == 'torn':
            # a torn last line of a run only means that the process was killed
            self._torn_position = self.run.position
        else:
            self._add_damage(f'damaged line: {record.reason}')

    def _on_footer(self, footer: FooterRecord) -> None:
        self._footer, self._footer_position = footer, self.run.position
        written = self.run.position.line - 2
        if footer.records != written:
            self._add_damage(f'the footer states {footer.records} records, the file has {written}')

    def _on_drop(self, record: DropRecord) -> None:
        reason = record.reason
        if reason.startswith(TRACE_LOSS_PREFIX):
            count = record.count or 0
            self._recorded_losses[reason] += count
            self._add_missing(f'the trace lost {count} records of {record.item}: {reason}')

    def _on_next_part(self, record: TraceRecord, ended: LinePosition) -> None:
        """Check the end of the previous part; the record is the first line of the next one."""
        if self._torn_position == ended:
            self._add_missing('the part is torn', ended)
        elif self._footer_position != ended:
            self._add_missing('the part has no footer', ended)
        self._torn_position = None
        before = record.continues if isinstance(record, HeaderRecord) else ''
        if before and not ended.file.endswith(before):
            self._add_missing(f'the previous part, {before}, is missing')

    def _compare_losses(self, footer: FooterRecord) -> None:
        counted = footer.records_lost
        if self.run.is_partial:
            self._drops.why_not = 'the oldest parts were removed, with their loss records'
            if counted:
                self.run.is_damaged = True
            return
        self._drops.judged = 1
        for reason in sorted(
            (counted.keys() | self._recorded_losses.keys()) - UNRECORDABLE_LOSSES
        ):
            if counted.get(reason, 0) != self._recorded_losses[reason]:
                self.run.is_damaged = True
                self._drops.add_violation(
                    f'the footer counts {counted.get(reason, 0)} lost to {reason}, the drop '
                    f'records {self._recorded_losses[reason]}'
                )

    def _add_missing(self, what: str, position: LinePosition | None = None) -> None:
        self.run.is_damaged = True
        self.tally.add_gap(what, position)

    def _add_damage(self, what: str) -> None:
        self.run.is_damaged = True
        self.tally.add_violation(what)

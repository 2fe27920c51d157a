# SPDX-License-Identifier: Apache-2.0
"""
Checks that the trace is complete and undamaged and that its losses match the footer.

Damage and wrong counts are violations. A missing end, part or record is a gap: the trace is
incomplete. Both mark the run as damaged, so that the other checks hold for the recorded part only.
One thread.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import integer, Record, table, text
from lerobot_serve.tools.traces.trace_run import LinePosition

TRACE_LOSS_PREFIX = 'trace_'
# losses after the last drop record
UNRECORDABLE_LOSSES = frozenset({'trace_closed'})


class TraceIntegrityCheck(RunCheck):
    """See the module."""

    CHECKS = ('whole', 'drops')
    KINDS = ('header', 'footer', 'drop', 'damaged')

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._drops = self.tallies[1]
        self._drops.why_not = 'the run has no end'
        self.tally.judged = 1
        self._footer: Record = {}
        self._footer_place: LinePosition | None = None
        self._torn_place: LinePosition | None = None
        self._recorded_losses: Counter[str] = Counter()

    def observe(self, record: Record) -> None:
        kind = record['kind']
        if kind == 'damaged':
            self._on_damage(record)
        elif kind == 'footer':
            self._on_footer(record)
        elif kind == 'drop':
            self._on_drop(record)
        if self.run.place.line == 1 and self.run.previous_part_position:
            self._on_next_part(record)

    def finish(self) -> None:
        """Require a footer of a closed run; a torn last line means that the process was killed."""
        place = self.run.place
        if self._footer_place != place:
            how = (
                'last line torn, process killed'
                if self._torn_place
                else 'process killed or still running'
            )
            self._add_missing(f'no footer: {how}', place)
        elif text(self._footer, 'end_reason') != 'closed':
            self._add_missing(
                'the run continues after its last part, or the process was killed', place
            )
        else:
            self._compare_losses()

    def _on_damage(self, record: Record) -> None:
        if text(record, 'reason') == 'torn':
            # at the end of the run this only means that the process was killed
            self._torn_place = self.run.place
        else:
            self._add_damage(f'damaged line: {text(record, "reason")}')

    def _on_footer(self, footer: Record) -> None:
        self._footer, self._footer_place = footer, self.run.place
        written, said = self.run.place.line - 2, integer(footer, 'records')
        if said != written:
            self._add_damage(f'the footer states {said} records, the file has {written}')

    def _on_drop(self, record: Record) -> None:
        reason = text(record, 'reason')
        if reason.startswith(TRACE_LOSS_PREFIX):
            count = integer(record, 'count') or 0
            self._recorded_losses[reason] += count
            self._add_missing(
                f'the trace lost {count} records of {text(record, "item")}: {reason}'
            )

    def _on_next_part(self, header: Record) -> None:
        ended = self.run.previous_part_position
        if self._torn_place == ended:
            self._add_missing('the part is torn', ended)
        elif self._footer_place != ended:
            self._add_missing('the part has no footer', ended)
        self._torn_place = None
        before = text(header, 'continues')
        if before and not ended.file.endswith(before):
            self._add_missing(f'the previous part, {before}, is missing')

    def _compare_losses(self) -> None:
        if self.run.is_partial:
            self._drops.why_not = 'the oldest parts were removed, with their loss records'
            if table(self._footer, 'records_lost'):
                self.run.is_damaged = True
            return
        self._drops.judged = 1
        counted = table(self._footer, 'records_lost')
        for reason in sorted(
            (counted.keys() | self._recorded_losses.keys()) - UNRECORDABLE_LOSSES
        ):
            if counted.get(reason, 0) != self._recorded_losses[reason]:
                self.run.is_damaged = True
                self._drops.add_violation(
                    f'the footer counts {counted.get(reason, 0)} lost to {reason}, the drop '
                    f'records {self._recorded_losses[reason]}'
                )

    def _add_missing(self, what: str, place: LinePosition | None = None) -> None:
        self.run.is_damaged = True
        self.tally.add_gap(what, place)

    def _add_damage(self, what: str) -> None:
        self.run.is_damaged = True
        self.tally.add_violation(what)

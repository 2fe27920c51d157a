"""
The trace itself: no damage, all parts and footers there, nothing lost, and the losses add up.

Damage and wrong counts are violations. What is missing (the end of a process that was killed, a
part, a record that the trace lost) contradicts nothing: the trace is incomplete. Either is noted
in the run, so that the other checks hold for what was recorded only. One thread.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import integer, Record, table, text
from lerobot_serve.tools.traces.trace_run import LinePosition

TRACE_LOSS_PREFIX = 'trace_'
# what is lost behind the last record that can tell of it
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
        self._told: Counter[str] = Counter()

    def see(self, record: Record) -> None:
        kind = record['kind']
        if kind == 'damaged':
            self._see_damage(record)
        elif kind == 'footer':
            self._see_footer(record)
        elif kind == 'drop':
            self._see_drop(record)
        if self.run.place.line == 1 and self.run.previous_part_position:
            self._see_next_part(record)

    def finish(self) -> None:
        """The last part may be torn, but a run that was ended has a footer that says so."""
        place = self.run.place
        if self._footer_place != place:
            how = (
                'its last line is torn: the process was killed'
                if self._torn_place
                else ('the process was killed or still runs')
            )
            self._missing(f'the run has no footer: {how}', place)
        elif text(self._footer, 'ended') != 'closed':
            self._missing('the run goes on behind its last part, or was killed', place)
        else:
            self._add_up()

    def _see_damage(self, record: Record) -> None:
        if text(record, 'reason') == 'torn':
            # where the run ends this is no more than a process that was killed
            self._torn_place = self.run.place
        else:
            self._wrong(f'the line is damaged: {text(record, "reason")}')

    def _see_footer(self, footer: Record) -> None:
        self._footer, self._footer_place = footer, self.run.place
        written, said = self.run.place.line - 2, integer(footer, 'records')
        if said != written:
            self._wrong(f'the footer says {said} records, the file has {written}')

    def _see_drop(self, record: Record) -> None:
        reason = text(record, 'reason')
        if reason.startswith(TRACE_LOSS_PREFIX):
            count = integer(record, 'count') or 0
            self._told[reason] += count
            self._missing(f'the trace lost {count} records of {text(record, "of")}: {reason}')

    def _see_next_part(self, header: Record) -> None:
        ended = self.run.previous_part_position
        if self._torn_place == ended:
            self._missing('the part is torn', ended)
        elif self._footer_place != ended:
            self._missing('the part has no footer', ended)
        self._torn_place = None
        before = text(header, 'continues')
        if before and not ended.file.endswith(before):
            self._missing(f'the part before it, {before}, is gone')

    def _add_up(self) -> None:
        if self.run.is_partial:
            self._drops.why_not = 'the oldest parts are gone, with what they tell of losses'
            if table(self._footer, 'dropped'):
                self.run.is_damaged = True
            return
        self._drops.judged = 1
        counted = table(self._footer, 'dropped')
        for reason in sorted((counted.keys() | self._told.keys()) - UNRECORDABLE_LOSSES):
            if counted.get(reason, 0) != self._told[reason]:
                self.run.is_damaged = True
                self._drops.violated(
                    f'the footer counts {counted.get(reason, 0)} lost to {reason}, the records '
                    f'tell of {self._told[reason]}'
                )

    def _missing(self, what: str, place: LinePosition | None = None) -> None:
        self.run.is_damaged = True
        self.tally.incomplete(what, place)

    def _wrong(self, what: str) -> None:
        self.run.is_damaged = True
        self.tally.violated(what)

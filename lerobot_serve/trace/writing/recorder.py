# SPDX-License-Identifier: Apache-2.0
"""
What every node records in the same way: states, incidents, parameters, drops, and its end.

Any thread; each call queues its records and returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from enum import Enum
import threading

from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import enum_name, RecordIds, TraceRecord
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.writing.open_trace import TraceParameters
from lerobot_serve.trace.writing.writer import TraceWriter

# a hanging thread must not prevent the end of the trace
JOIN_S = 2.0
NO_IDS, FULL = RecordIds(), Redaction(images='full')


class Recorder:
    """The recorder of one run of a node; `ids` name its robot, if it has one."""

    def __init__(
        self,
        writer: TraceWriter,
        clock: Callable[[], int],
        redaction: Redaction = FULL,
        ids: RecordIds = NO_IDS,
    ) -> None:
        self.writer, self.clock, self.redaction, self.ids = writer, clock, redaction, ids
        self._totals: Counter[str] = Counter()
        self._dropping = threading.Lock()

    def run(
        self,
        stop: threading.Event,
        others: Iterable[threading.Thread],
        totals: Callable[[], Counter[str]],
    ) -> None:
        """
        Write until `stop` is set and the `others` have ended, then close the trace; the body of
        the thread `trace`. `totals` returns the drops since start, by reason.
        """
        self.writer.run(stop)
        for thread in others:
            thread.join(JOIN_S)
        self.dropped(totals())
        self.writer.close()

    def write(self, record: TraceRecord) -> None:
        """Queue a record."""
        self.writer.write(record)

    def state(
        self,
        component: str,
        before: str | Enum,
        after: str | Enum,
        why: str = '',
        *,
        ids: RecordIds | None = None,
        now_ns: int | None = None,
    ) -> None:
        """Record a change of state of one component; without `now_ns` it changes now."""
        self.write(
            records.StateRecord(
                self.clock() if now_ns is None else now_ns,
                *(ids or self.ids).fields(),
                component=component,
                before=enum_name(before),
                after=enum_name(after),
                reason=why,
            )
        )

    def incident(
        self, name: str, why: str, *, ids: RecordIds | None = None, now_ns: int | None = None
    ) -> None:
        """Record an incident; without `now_ns` it happens now."""
        at_ns = self.clock() if now_ns is None else now_ns
        fields = (ids or self.ids).fields()
        self.write(records.IncidentRecord(at_ns, *fields, name=name, reason=why))

    def changed_parameters(
        self, before: TraceParameters, after: TraceParameters, by: str = ''
    ) -> None:
        """Record the parameters that differ, redacted, and who changed them if that is known."""
        old, shown = asdict(before), self.redaction.value
        for name, new in asdict(after).items():
            if old[name] != new:
                pair = {'old': shown(name, old[name]), 'new': shown(name, new)}
                self.write(records.ParameterRecord(self.clock(), name=name, by=by, **pair))

    def dropped(self, totals: Counter[str]) -> None:
        """Record what is new in the totals of drops since start, by reason."""
        # the timer and the end of the run may call concurrently
        with self._dropping:
            new, self._totals = totals - self._totals, totals | self._totals
        for reason, count in sorted(new.items()):
            ids = self.ids.fields()
            self.write(records.DropRecord(self.clock(), *ids, reason=reason, count=count))

# SPDX-License-Identifier: Apache-2.0
"""
Checks that every request of an edge has an end: a `request` or a `drop` record.

An edge numbers its requests without gaps, from 1 in each session, so a number without such a
record is a request without a known end. One thread.
"""

from __future__ import annotations

from lerobot_serve.tools.audit.checks.check import RunCheck
from lerobot_serve.tools.traces.fields import is_later_session
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.records import DropRecord, RequestRecord


class RequestEndCheck(RunCheck[RequestRecord | DropRecord]):
    """See the module."""

    CHECKS = ('ended',)
    RECORDS = (RequestRecord, DropRecord)
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'no requests recorded'

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        # client -> its session and its last ended request
        self._last: dict[str, tuple[int, int]] = {}

    def observe(self, record: RequestRecord | DropRecord) -> None:
        client, epoch, seq = record.client_id, record.session_epoch, record.seq
        if epoch is None or seq is None:
            return
        self.tally.judged += 1
        last = self._last_of(client, epoch, seq)
        if last is None:
            return
        if seq > last + 1:
            missing = str(last + 1) if seq == last + 2 else f'{last + 1} to {seq - 1}'
            self.tally.add_violation(
                f'request {missing} has no end record (next recorded request: {seq})'
            )
        self._last[client] = epoch, max(seq, last)

    def _last_of(self, client: str, epoch: int, seq: int) -> int | None:
        """Return the previous request of the session, None for a session that is over."""
        known = self._last.get(client)
        if known is None:
            # the parts with the start of the first session may have been removed
            return seq - 1 if self.run.is_partial else 0
        if known[0] == epoch:
            return known[1]
        return 0 if is_later_session(epoch, known[0]) else None

    def finish(self) -> None:
        if self.run.is_damaged and self.tally.violations:
            self.tally.retract('records are missing, which may hold the end of a request')

# SPDX-License-Identifier: Apache-2.0
"""
Checks that every request of an edge has an end: a `request` or a `drop` record.

An edge numbers its requests without gaps, from 1 in each session, so a number without such a
record is a request without a known end. One thread.
"""

from __future__ import annotations

from typing import Any

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import integer, is_later_session, Record, text


class RequestEndCheck(RunCheck):
    """See the module."""

    CHECKS = ('ended',)
    KINDS = ('request', 'drop')
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'there is no request'

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # client -> its session and its last ended request
        self._last: dict[str, tuple[int, int]] = {}

    def observe(self, record: Record) -> None:
        client, epoch = text(record, 'client_id'), integer(record, 'session_epoch')
        seq = integer(record, 'seq')
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
            # the beginning of the first session may have been removed
            return seq - 1 if self.run.is_partial else 0
        if known[0] == epoch:
            return known[1]
        return 0 if is_later_session(epoch, known[0]) else None

    def finish(self) -> None:
        if self.run.is_damaged and self.tally.violations:
            self.tally.retract('records are missing, which may hold the end of a request')

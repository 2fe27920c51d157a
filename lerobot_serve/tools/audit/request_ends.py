"""
Every request of an edge has an end: an answer, or a record of why there is none.

An edge numbers its requests without gaps, from 1 in each session. So a number that neither a
`request` nor a `drop` names is a request of which nobody knows what became. One thread.
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
    WHY_NOT = 'there is no request'

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # client -> its session and the last request that ended
        self._last: dict[str, tuple[int, int]] = {}

    def see(self, record: Record) -> None:
        client, epoch = text(record, 'client'), integer(record, 'session_epoch')
        seq = integer(record, 'seq')
        if epoch is None or seq is None:
            return
        self.tally.judged += 1
        last = self._last_of(client, epoch, seq)
        if last is None:
            return
        if seq > last + 1:
            missing = str(last + 1) if seq == last + 2 else f'{last + 1} to {seq - 1}'
            self.tally.violated(f'before request {seq}, nobody knows what became of {missing}')
        self._last[client] = epoch, max(seq, last)

    def _last_of(self, client: str, epoch: int, seq: int) -> int | None:
        """Return the request before in that session, None when the session is over."""
        known = self._last.get(client)
        if known is None:
            # the beginning of the first session may have been removed
            return seq - 1 if self.run.is_partial else 0
        if known[0] == epoch:
            return known[1]
        return 0 if is_later_session(epoch, known[0]) else None

    def finish(self) -> None:
        if self.run.is_damaged and self.tally.violations:
            self.tally.withdraw('records are missing: a request may have ended in one of them')

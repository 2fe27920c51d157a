# SPDX-License-Identifier: Apache-2.0
"""
Checks of requests: each one has an end, one is in flight at a time, and a policy ignores the
prefix of another one.

An edge numbers its requests without gaps, from 1 in each session, so a number without a `request`
or `drop` record is a request without a known end. A request ends when its record is written, and
is sent one round trip earlier. One thread.
"""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import is_later_session
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.records import DropRecord, RequestRecord

# rounding of a round trip written as a float [ms]
ROUNDING_NS = 1000


class RequestEndCheck(RunCheck[RequestRecord | DropRecord]):
    """Checks that every request of an edge has an end: a `request` or a `drop` record."""

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


class LastEnd(NamedTuple):
    """Latest end of a request of one client."""

    epoch: int | None
    seq: int | None
    at_ns: int


class OneInFlightCheck(RunCheck[RequestRecord]):
    """Checks that a client sends a request only after its previous one in the session."""

    CHECKS = ('one_in_flight',)
    RECORDS = (RequestRecord,)
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'no request has a round trip'

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        self._ended: dict[str, LastEnd] = {}

    def observe(self, record: RequestRecord) -> None:
        client, epoch = record.client_id, record.session_epoch
        seq, ended_ns = record.seq, record.mono_ns
        if ended_ns is None:
            return
        before = self._ended.get(client)
        if before and before.epoch != epoch:
            before = None
        round_trip_ms = record.round_trip_ms
        if round_trip_ms is not None:
            self.tally.judged += 1
            early_ms = (before.at_ns - ended_ns) / 1e6 + round_trip_ms if before else 0.0
            if before and early_ms * 1e6 > ROUNDING_NS + self.run.slack_ns:
                self.tally.add_violation(
                    f'request {seq} was sent {early_ms:.3f} ms before request {before.seq} ended'
                )
        latest_ns = max(ended_ns, before.at_ns) if before else ended_ns
        self._ended[client] = LastEnd(epoch, seq, latest_ns)


class PrefixPolicyCheck(RunCheck[RequestRecord]):
    """Checks that a reply to a prefix of another policy is marked `prefix_ignored`."""

    CHECKS = ('prefix',)
    RECORDS = (RequestRecord,)
    NOT_JUDGED_REASON = 'no request names the policy of its prefix'

    def observe(self, record: RequestRecord) -> None:
        source, replied = record.prefix_policy, record.policy
        if not source or not replied or record.status != 'ok':
            return
        self.tally.judged += 1
        if source != replied and not record.prefix_ignored:
            self.tally.add_violation(
                f'{replied} replied to a prefix of {source} without prefix_ignored'
            )

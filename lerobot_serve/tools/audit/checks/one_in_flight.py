# SPDX-License-Identifier: Apache-2.0
"""
Checks that a client sends a request only after its previous one in the session has ended.

A request ends when its record is written, and is sent one round trip earlier. One thread.
"""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.tools.audit.checks.check import RunCheck
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.records import RequestRecord

# rounding of a round trip written as a float [ms]
ROUNDING_NS = 1000


class LastEnd(NamedTuple):
    """Latest end of a request of one client."""

    epoch: int | None
    seq: int | None
    at_ns: int


class OneInFlightCheck(RunCheck[RequestRecord]):
    """See the module."""

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

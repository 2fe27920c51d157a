# SPDX-License-Identifier: Apache-2.0
"""
What the gateway counts. The event loop adds, also threads of the link what it loses; the metrics
thread reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
import threading

from lerobot_serve.telemetry.histogram import Histogram

OK = 'ok'


@dataclass(slots=True)
class GatewayCounters:
    """
    requests   by (protocol, status); status is ok or a Status
    refused    by (protocol, reason): what never became a request
    latencies  of answered requests, by protocol
    callers    open sessions now, by protocol
    opened     sessions opened, by protocol
    dropped    replies of the router without a request, by reason
    lost       requests that the link to the router did not take, by reason
    """

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies: dict[str, Histogram] = field(default_factory=dict)
    callers: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_dropped(self, reason: str) -> None:
        self.dropped[reason] += 1

    def note_lost(self, reason: str) -> None:
        """Count a request that the link did not take; any thread."""
        with self._lock:
            self.lost[reason] += 1

    def note_request(self, protocol: str, status: str, duration_s: float) -> None:
        """Count a request with its end."""
        self.requests[protocol, status] += 1
        if status == OK:
            if protocol not in self.latencies:
                self.latencies[protocol] = Histogram()
            self.latencies[protocol].add(duration_s)

# SPDX-License-Identifier: Apache-2.0
"""The result of a simulation. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
import math


@dataclass(frozen=True, slots=True)
class ServerShare:
    """One server: its robots at the end, chunks, busy share and blocked share of its robots."""

    robots: int
    chunks: int
    busy_share: float
    blocked_share: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """
    Counts of one simulation.

    seconds      virtual time in which robots send requests
    requests     requests sent; each ends answered, superseded or lost
    answered     requests with a chunk in time
    superseded   requests replaced by a newer one of the same robot
    lost         by reason: server_lost, or late_chunk (after the timeout of the request)
    latencies_s  times from observation to chunk of answered requests, sorted
    stalled      number of robots that ran out of actions
    stalled_s    total time without actions
    servers      the share of each server
    """

    seconds: float
    requests: int
    answered: int
    superseded: int
    lost: Counter[str]
    latencies_s: tuple[float, ...]
    stalled: int
    stalled_s: float
    servers: tuple[ServerShare, ...]

    def latency_ms(self, percent: float) -> float | None:
        """Return a percentile of the latency, by nearest rank; None without a chunk."""
        if not self.latencies_s:
            return None
        rank = math.ceil(percent / 100 * len(self.latencies_s))
        return 1e3 * self.latencies_s[max(0, rank - 1)]

    @property
    def chunks(self) -> int:
        """Number of chunks, including late ones."""
        return self.answered + self.lost['late_chunk']

    @property
    def busy_share(self) -> float:
        """Mean busy share of all servers."""
        return sum(share.busy_share for share in self.servers) / len(self.servers)

    @property
    def blocked_share(self) -> float:
        """
        Largest blocked share of all servers: the share of time in which a request was due while
        the previous one was in flight.
        """
        return max(share.blocked_share for share in self.servers)

# SPDX-License-Identifier: Apache-2.0
"""Counts of a simulation. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
import math


@dataclass(frozen=True, slots=True)
class ServerShare:
    """One server: robots at the end, chunks, busy share and share of time its robots wait."""

    robots: int
    chunks: int
    busy_share: float
    held_share: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """
    Counts of one simulation.

    seconds      virtual time in which robots send requests
    asked        requests; each was answered, superseded or lost in the end
    answered     those whose chunk arrived at a waiting robot
    superseded   those replaced by a newer one of the same robot
    lost         by reason: server_died, or late_chunk after its timeout
    answer_s     from observation to chunk, of those answered, in order of size
    stalled      robots that ran out of actions
    stalled_s    total time without actions
    servers      each server
    """

    seconds: float
    asked: int
    answered: int
    superseded: int
    lost: Counter[str]
    answer_s: tuple[float, ...]
    stalled: int
    stalled_s: float
    servers: tuple[ServerShare, ...]

    def answer_ms(self, percent: float) -> float | None:
        """Return a percentile of the time to an answer, by nearest rank; None without answers."""
        if not self.answer_s:
            return None
        rank = math.ceil(percent / 100 * len(self.answer_s))
        return 1e3 * self.answer_s[max(0, rank - 1)]

    @property
    def chunks(self) -> int:
        """Number of replies, late ones included."""
        return self.answered + self.lost['late_chunk']

    @property
    def busy_share(self) -> float:
        """The share of the time in which a server was busy, of all on average."""
        return sum(share.busy_share for share in self.servers) / len(self.servers)

    @property
    def held_share(self) -> float:
        """
        The share of time in which a request was due and the previous one still pending; the
        largest over all servers.
        """
        return max(share.held_share for share in self.servers)

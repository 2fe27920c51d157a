"""What a simulation has counted. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
import math


@dataclass(frozen=True, slots=True)
class ServerShare:
    """One server: robots at the end, chunks, busy time and how late its robots could ask."""

    robots: int
    chunks: int
    busy_share: float
    held_share: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """
    seconds      virtual time in which robots asked
    asked        requests; each was answered, superseded or lost in the end
    answered     those whose chunk came to a robot that waited for it
    superseded   those whose place at a server a newer one of the same robot took
    lost         by reason: server_died, or late_chunk for one that nobody waited for any more
    answer_s     from observation to chunk, of those answered, in order of size
    stalled      robots that at one time had nothing to play
    stalled_s    for how long, all together
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
        """What the servers have answered, whether anybody still waited for it or not."""
        return self.answered + self.lost['late_chunk']

    @property
    def busy_share(self) -> float:
        """The share of the time in which a server was busy, of all on average."""
        return sum(share.busy_share for share in self.servers) / len(self.servers)

    @property
    def held_share(self) -> float:
        """
        The share of the time in which robots wanted to ask and still waited for the answer before;
        that of the server at which it is largest.
        """
        return max(share.held_share for share in self.servers)

# SPDX-License-Identifier: Apache-2.0
"""The requests of a fleet, and the time that a policy takes for them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.parameters import ParameterError

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FleetDemand:
    """
    Robots with equal demands.

    rate_hz     requests of each robot
    network_s   the round trip through the network; half of it each way
    chunk_s     how much motion a chunk holds
    max_age_s   no action is played whose observation is older
    failover_s  time from the loss of a server to the next request of its robots
    patience_s  a request without a reply times out after this; 0 for robots that send at their
                rate whatever comes
    jitter      by which share the time between two requests is longer or shorter, at most
    """

    robots: int
    rate_hz: float
    network_s: float
    chunk_s: float
    max_age_s: float
    failover_s: float
    patience_s: float
    jitter: float = 0.1

    @property
    def period_s(self) -> float:
        """The time between two requests of a robot."""
        return 1 / self.rate_hz

    @property
    def playable_s(self) -> float:
        """For how long after its observation a chunk can be played."""
        return min(self.chunk_s, self.max_age_s)

    @property
    def left_s(self) -> float:
        """Queue left at a request, which is its request_threshold_s. 0 or less: too little."""
        return self.playable_s - self.period_s


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """
    How long a server is busy with the requests that it answers together, at most `batch`:
    `first_s` for one, `more_s` for each further one; the first waits `window_s` for company.
    Raises ParameterError.
    """

    first_s: float
    more_s: float = 0.0
    batch: int = 1
    window_s: float = 0.0

    def __post_init__(self) -> None:
        if self.more_s > self.first_s:
            raise ParameterError(
                'a further request of a batch must not take longer than a single one '
                f'({1e3 * self.first_s:g} ms), got {1e3 * self.more_s:g}'
            )

    def together_s(self, requests: int) -> float:
        """Return how long so many take together."""
        return self.first_s + (requests - 1) * self.more_s

    def each_s(self, robots: int) -> float:
        """Return how long one request takes of a server when all of so many robots wait."""
        together = min(self.batch, max(1, robots))
        return self.together_s(together) / together

    def robots_within(self, budget_s: float) -> int:
        """Return how many robots a server can answer once each, in so much of its time."""
        robots = whole_number(budget_s / self.each_s(self.batch))
        if robots >= self.batch or budget_s < self.first_s:
            return robots if robots >= self.batch else 0
        # so few that a batch holds them all
        return 1 + whole_number((budget_s - self.first_s) / self.more_s)


def whole_number(number: float) -> int:
    """Return how many whole ones that are; 0.8 / 0.1 is 8, whatever rounding makes of it."""
    return max(0, math.floor(number + ROUNDING))

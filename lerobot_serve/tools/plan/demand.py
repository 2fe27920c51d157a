# SPDX-License-Identifier: Apache-2.0
"""The request load of a fleet and the service time of a policy server. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
import math

from lerobot_serve.parameters import ParameterError

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FleetDemand:
    """
    A fleet of equal robots.

    rate_hz            request rate of each robot
    network_s          network round trip; each direction takes half of it
    chunk_s            duration of a chunk
    max_age_s          largest age of an action, counted from its observation
    failover_s         time from the loss of a server to the next request of its robots
    request_timeout_s  time limit of a request; 0 for robots that send at their rate without
                       waiting for replies
    jitter             largest relative deviation of the time between two requests
    """

    robots: int
    rate_hz: float
    network_s: float
    chunk_s: float
    max_age_s: float
    failover_s: float
    request_timeout_s: float
    jitter: float = 0.1

    @property
    def period_s(self) -> float:
        """Time between two requests of a robot."""
        return 1 / self.rate_hz

    @property
    def playable_s(self) -> float:
        """Time after its observation for which a chunk can be played."""
        return min(self.chunk_s, self.max_age_s)

    @property
    def buffer_s(self) -> float:
        """Queued motion when a request is due (request_threshold_s); a stall at 0 or less."""
        return self.playable_s - self.period_s


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """
    Service time of a batch of up to `batch` requests: `first_s` for the first request, `more_s`
    for each further one. An incomplete batch waits up to `window_s` for further requests. Raises
    ParameterError.
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

    def batch_time_s(self, requests: int) -> float:
        """Return the service time of a batch of `requests`."""
        return self.first_s + (requests - 1) * self.more_s

    def request_time_s(self, robots: int) -> float:
        """Return the service time per request when all `robots` wait."""
        together = min(self.batch, max(1, robots))
        return self.batch_time_s(together) / together

    def time_at_once_s(self, robots: int) -> float:
        """Return the time until all `robots` are answered that send at once."""
        full, rest = divmod(robots, self.batch)
        return full * self.batch_time_s(self.batch) + (self.batch_time_s(rest) if rest else 0.0)

    def robots_at_once(self, budget_s: float) -> int:
        """Return the number of robots that may send at once, with a reply within `budget_s`."""
        most = self.batch * (1 + whole_number(budget_s / self.batch_time_s(self.batch)))
        return bisect_right(range(1, most + 1), budget_s + ROUNDING, key=self.time_at_once_s)

    def robots_within(self, budget_s: float) -> int:
        """
        Return the number of robots that a server can answer once each within `budget_s`, on
        average: where batches are full, a batch may go on beyond it.
        """
        robots = whole_number(budget_s / self.request_time_s(self.batch))
        if robots >= self.batch or budget_s < self.first_s:
            return robots if robots >= self.batch else 0
        # all robots fit into one batch
        return 1 + whole_number((budget_s - self.first_s) / self.more_s)


def whole_number(number: float) -> int:
    """Return the number rounded down, at least 0; corrects rounding errors (0.8 / 0.1 is 8)."""
    return max(0, math.floor(number + ROUNDING))

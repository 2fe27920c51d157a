"""
How many robots this server can serve: a rule of thumb fed with measurements. Pure functions.

Two bounds. The server shall be busy at most MAX_UTILIZATION of the time, at the rate at which robots
ask. And when all robots ask at once, the last one's answer shall come before half of its chunk is
played.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

MAX_UTILIZATION = 0.8
MAX_LOAD = 0.99


@dataclass(frozen=True, slots=True)
class Demand:
    """What the robots ask of the server."""

    rate_hz: float
    chunk_s: float
    network_s: float


def max_robots(service_s: float, demand: Demand) -> int:
    """Return how many robots can be served; at least 1, since a slow server beats none."""
    if service_s <= 0:
        raise ValueError(f'the service time must be above 0, got {service_s}')
    by_load = MAX_UTILIZATION / (demand.rate_hz * service_s)
    by_delay = (demand.chunk_s / 2 - demand.network_s) / service_s
    return max(1, math.floor(min(by_load, by_delay)))


def expected_rate_hz(chunk_s: float) -> float:
    """Return how often a robot will ask that nothing is known of: twice a chunk."""
    return 2 / chunk_s


def predicted_delay_s(service_s: float, load: float, waiting: int) -> float:
    """
    Return how long a request would take that arrives now: its own service, and before it what
    waits already or, at random moments, what a queue of this load holds on average.
    """
    busy = min(max(load, 0.0), MAX_LOAD)
    queued = busy / (2 * (1 - busy))
    return service_s * (1 + max(queued, waiting))

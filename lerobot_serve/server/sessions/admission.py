# SPDX-License-Identifier: Apache-2.0
"""
Compute how many clients this server admits, from measurements. Pure functions.

Two bounds: the server is busy at most MAX_UTILIZATION of the time at the clients' request rate,
and if all clients send at once, the last reply arrives before half of its chunk is executed.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

MAX_UTILIZATION = 0.8
MAX_LOAD = 0.99


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of one client."""

    rate_hz: float
    chunk_s: float
    network_s: float


def max_robots(service_s: float, demand: Demand, batch: float = 1.0, single_s: float = 0.0) -> int:
    """
    Return how many clients are admitted; at least 1. `service_s` was measured per request in
    batches of `batch`; `single_s` is that of a request alone, 0 where it is not known.
    """
    if service_s <= 0:
        raise ValueError(f'service_s must be above 0, got {service_s}')
    by_load = MAX_UTILIZATION / (demand.rate_hz * service_s)
    by_delay = _served_at_once(demand.chunk_s / 2 - demand.network_s, service_s, batch, single_s)
    return max(1, math.floor(min(by_load, by_delay)))


def _served_at_once(budget_s: float, service_s: float, batch: float, single_s: float) -> float:
    """
    Return how many clients that send at once are served within a time. The last batch is seldom
    full, and takes almost as long as a full one.
    """
    batch_s = batch * service_s
    single_s = min(max(single_s, service_s), batch_s)
    if batch <= 1 or single_s == service_s:
        return budget_s / service_s
    batches, left_s = divmod(budget_s, batch_s)
    if left_s < single_s:
        return batches * batch
    return batches * batch + 1 + (left_s - single_s) * (batch - 1) / (batch_s - single_s)


def expected_rate_hz(chunk_s: float) -> float:
    """Return the assumed request rate of a client without measurements: two in a chunk."""
    return 2 / chunk_s


def predicted_delay_s(service_s: float, load: float, waiting: int) -> float:
    """
    Return the expected delay of a request that arrives now: its own service time, plus the queued
    requests or, if more, the mean queue at this load.
    """
    busy = min(max(load, 0.0), MAX_LOAD)
    queued = busy / (2 * (1 - busy))
    return service_s * (1 + max(queued, waiting))

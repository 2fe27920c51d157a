# SPDX-License-Identifier: Apache-2.0
"""
Recent delays of replies per server, from the mark of a request to its reply.

The window is bounded by count and by time, so that one slow reply does not count forever. The
first replies of a session are excluded: the server may have loaded or compiled meanwhile. The
request thread owns it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
import math


@dataclass(slots=True)
class _RoundTrips:
    """End time and duration of each round trip, oldest first; replies still to exclude."""

    round_trips: deque[tuple[int, float]] = field(default_factory=deque)
    warming_up: int = 0


class LatencyTracker:
    """Round trips of at most `max_servers` servers; evicts the least recently used."""

    def __init__(
        self,
        *,
        samples: int = 100,
        window_s: float = 60.0,
        warm_up: int = 2,
        max_servers: int = 16,
    ) -> None:
        """
        Keep at most `samples` of the last `window_s` seconds, excluding the first `warm_up` of
        each session: the first request, and the first that carries a prefix.
        """
        self._samples, self._window_ns = samples, round(1e9 * window_s)
        self._warm_up, self._max_servers = warm_up, max_servers
        self._servers: dict[str, _RoundTrips] = {}

    def begin_session(self, server: str) -> None:
        """Exclude the next replies of this server; known round trips stay."""
        self._touch(server).warming_up = self._warm_up

    def add(self, server: str, latency_s: float, now_ns: int) -> None:
        """Record a round trip that ends now; ignores a negative or non-finite one."""
        if not 0 <= latency_s < math.inf:
            return
        known = self._touch(server)
        if known.warming_up:
            known.warming_up -= 1
        else:
            known.round_trips.append((now_ns, latency_s))

    def maximum(self, server: str, now_ns: int) -> float | None:
        """Return the longest round trip of the window in seconds, None if empty."""
        return max(self._window(server, now_ns), default=None)

    def delay_steps(self, server: str, now_ns: int, *, step_s: float) -> int:
        """
        Return the expected delay of the next reply in steps, 0 if unknown.

        It is the longest round trip: an overestimate only lengthens the prefix, an underestimate
        causes a jump.
        """
        return math.ceil((self.maximum(server, now_ns) or 0.0) / step_s)

    def _window(self, server: str, now_ns: int) -> list[float]:
        known = self._servers.get(server)
        if known is None:
            return []
        while known.round_trips and known.round_trips[0][0] < now_ns - self._window_ns:
            known.round_trips.popleft()
        return [latency_s for _, latency_s in known.round_trips]

    def _touch(self, server: str) -> _RoundTrips:
        """Return the data of a server, now the most recently used."""
        known = self._servers.pop(server, None) or self._new()
        self._servers[server] = known
        if len(self._servers) > self._max_servers:
            del self._servers[next(iter(self._servers))]
        return known

    def _new(self) -> _RoundTrips:
        return _RoundTrips(deque(maxlen=self._samples), self._warm_up)

# SPDX-License-Identifier: Apache-2.0
"""
One direction of a link: what becomes of a packet, and when. Pure: reads no clock, moves no bytes;
one owner.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
import random

NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a link is like, in each direction of its own. Raises ValueError."""

    rate_mbit_s: float
    delay_ms: float
    loss_percent: float
    # how long a packet may wait for those before it; what would wait longer is dropped
    queue_ms: float

    def __post_init__(self) -> None:
        if self.rate_mbit_s <= 0:
            raise ValueError(f'rate_mbit_s must be above 0, got {self.rate_mbit_s:g}')
        if not 0 <= self.loss_percent <= 100:
            raise ValueError(f'loss_percent must be in [0, 100], got {self.loss_percent:g}')
        if min(self.delay_ms, self.queue_ms) < 0:
            raise ValueError(
                f'delay_ms and queue_ms must be 0 or above, got {self.delay_ms:g} and '
                f'{self.queue_ms:g}'
            )


class Pipe:
    """
    Packets go in with `offer` and come out of `arrived`, each after its time, in their order.

    Each is counted: offered = queue_full + lost + delivered + those `under_way`.
    """

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self.conditions = conditions
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        # when the last packet so far has left the queue
        self._free_ns = 0
        # arrival and content
        self._under_way: deque[tuple[int, bytes]] = deque()

    def offer(self, packet: bytes, now_ns: int) -> None:
        """Send a packet off, or drop it."""
        link = self.conditions
        self.counts['offered'] += 1
        self.counts['offered_bytes'] += len(packet)
        begin_ns = max(now_ns, self._free_ns)
        if begin_ns - now_ns > link.queue_ms * NS_PER_MS:
            self.counts['queue_full'] += 1
            return
        self._free_ns = begin_ns + transmission_time_ns(len(packet), link.rate_mbit_s)
        # one that is lost on the way has had its time on the link
        if self._random.random() * 100 < link.loss_percent:
            self.counts['lost'] += 1
            return
        arrival_ns = self._free_ns + round(link.delay_ms * NS_PER_MS)
        # a link that was made faster meanwhile still keeps the order
        if self._under_way:
            arrival_ns = max(arrival_ns, self._under_way[-1][0])
        self._under_way.append((arrival_ns, packet))

    def arrived(self, now_ns: int) -> list[bytes]:
        """Take out what has arrived by now."""
        packets = []
        while self._under_way and self._under_way[0][0] <= now_ns:
            packets.append(self._under_way.popleft()[1])
        self.counts['delivered'] += len(packets)
        return packets

    @property
    def next_ns(self) -> int | None:
        """When the next packet arrives, None when there is none."""
        return self._under_way[0][0] if self._under_way else None

    @property
    def under_way(self) -> int:
        """How many packets have yet to arrive."""
        return len(self._under_way)


def transmission_time_ns(size_bytes: int, rate_mbit_s: float) -> int:
    """Return how long a packet of this size occupies the link, never too short."""
    return -int(-size_bytes * 8 * NS_PER_S // (rate_mbit_s * 1e6))

# SPDX-License-Identifier: Apache-2.0
"""Statistics of replies, for metrics. The request thread writes, any thread reads."""

from __future__ import annotations

from lerobot_serve.telemetry.histogram import Histogram

# servers choose slot names freely: bounds the number of series
SLOTS = ('prod', 'a', 'b')
OTHER_SLOT = 'other'


class ReplyStats:
    """
    Since start, of merged chunks by slot: round trip times and their share outside the server; and
    the number of superseded requests.
    """

    def __init__(self) -> None:
        self.round_trips = {slot: Histogram() for slot in (*SLOTS, OTHER_SLOT)}
        self.network = {slot: Histogram() for slot in (*SLOTS, OTHER_SLOT)}
        self.superseded = 0
        self._superseded_before = 0

    def begin_session(self) -> None:
        """Reset the reference of the server's superseded count."""
        self._superseded_before = 0

    def add(self, slot: str, superseded: int, *, round_trip_s: float, network_s: float) -> None:
        """Count a chunk; `superseded` is the server's count since the session was opened."""
        name = slot if slot in SLOTS else OTHER_SLOT
        self.round_trips[name].add(round_trip_s)
        self.network[name].add(network_s)
        self.superseded += max(0, superseded - self._superseded_before)
        self._superseded_before = superseded

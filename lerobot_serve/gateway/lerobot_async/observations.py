# SPDX-License-Identifier: Apache-2.0
"""
The observations of one client: the newest one waits for GetActions.

A client that runs dry repeats a timestep until a chunk arrives, so a timestep that was predicted
is skipped unless it must go; after `REPEAT_AFTER_S` it is predicted again, because the chunk may
have been lost. Unlike LeRobot's server, no observation is skipped because the joints moved little.

The event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
import time

from lerobot_serve.gateway.callers.predictions import PredictionRequest
from lerobot_serve.gateway.lerobot_async.agreement import Agreement
from lerobot_serve.peer_formats.safe_pickle import TimedObservation

REPEAT_AFTER_S = 1.0
REMEMBERED = 1024


@dataclass(frozen=True, slots=True, eq=False)
class PendingObservation:
    """An observation, and its request in the names of an agreement."""

    observation: TimedObservation
    agreement: Agreement
    request: PredictionRequest


class Observations:
    """See the module."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: PendingObservation | None = None
        self._arrived = asyncio.Event()
        # timestep -> when it was taken
        self._predicted: dict[int, float] = {}

    def put(self, seen: PendingObservation) -> str:
        """Keep an observation; return why one was dropped, in one word, or nothing."""
        observation = seen.observation
        if not observation.must_go and self._was_predicted(observation.timestep):
            return 'repeated_timestep'
        before, self._newest = self._newest, seen
        self._arrived.set()
        return 'superseded' if before else ''

    def _was_predicted(self, timestep: int) -> bool:
        taken_s = self._predicted.get(timestep)
        return taken_s is not None and self._clock() - taken_s < REPEAT_AFTER_S

    async def take(self, limit_s: float) -> PendingObservation | None:
        """Return the newest observation, or None when none comes in time."""
        try:
            async with asyncio.timeout(limit_s):
                while self._newest is None:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return None
        seen, self._newest = self._newest, None
        self._note(seen.observation.timestep)
        return seen

    def _note(self, timestep: int) -> None:
        self._predicted.pop(timestep, None)
        self._predicted[timestep] = self._clock()
        if len(self._predicted) > REMEMBERED:
            del self._predicted[next(iter(self._predicted))]

    def failed(self, seen: PendingObservation) -> None:
        """Let the timestep be predicted again: its client got no chunk and repeats it."""
        self._predicted.pop(seen.observation.timestep, None)

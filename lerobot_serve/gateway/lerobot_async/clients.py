# SPDX-License-Identifier: Apache-2.0
"""
The clients of the door by their connection, bounded in number: what was agreed with each, and its
observations. The event loop owns it.

A client never says that it leaves: one without a call for `LEFT_AFTER_S` makes room for another.
A RobotClient that runs has a GetActions open all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass, replace
import time

from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import (
    invalid,
    Prediction,
    PredictionError,
    PredictionRequest,
    Status,
)
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.lerobot_async.agreement import agree_again, Agreement
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.peer_formats.safe_pickle import (
    TimedObservation,
    write_actions,
)

LEFT_AFTER_S = 30.0
REPEAT_AFTER_S = 1.0
REMEMBERED = 1024
NO_INSTRUCTIONS = (
    'no SendPolicyInstructions came over this connection; the gateway or the network was '
    'interrupted: restart the robot client'
)
Chunk = tuple[bytes, Prediction]


@dataclass(frozen=True, slots=True, eq=False)
class PendingObservation:
    """An observation, and its request in the names of an agreement."""

    observation: TimedObservation
    agreement: Agreement
    request: PredictionRequest


class Observations:
    """
    Those of one client: the newest one waits for GetActions.

    A client that runs dry repeats a timestep until a chunk arrives, so a timestep that was
    predicted is skipped unless it must go; after `REPEAT_AFTER_S` it is predicted again, because
    the chunk may have been lost. Unlike LeRobot's server, no observation is skipped because the
    joints moved little.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
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


class RobotClient:
    """One RobotClient: what was agreed with it by its policy instructions, its observations."""

    def __init__(
        self,
        caller: Caller,
        agreement: Agreement,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.caller, self.agreement = caller, agreement
        self.observations = Observations(clock)
        self.is_receiving = False
        # calls that run, and when the last one began or ended
        self.running, self.used_s = 0, clock()
        self._is_new = True

    def observe(self, seen: TimedObservation) -> str:
        """Keep an observation; return why one was dropped. Raises PredictionError."""
        request = self.agreement.request(seen, episode_start=False)
        return self.observations.put(PendingObservation(seen, self.agreement, request))

    async def chunk(self, gateway: Gateway, wait_s: float) -> Chunk | None:
        """
        Return the chunk of the newest observation, None when none comes in time. Raises
        PredictionError.
        """
        seen = await self.observations.take(wait_s)
        if seen is None:
            return None
        try:
            return await self._predicted(seen, gateway)
        except BaseException:
            self.observations.failed(seen)
            raise

    async def _predicted(self, seen: PendingObservation, gateway: Gateway) -> Chunk:
        session = await gateway.session(self.caller)
        self._check_contract(session.contract)
        prediction = await session.predict(self._request(seen))
        self._is_new = False
        # the policy may have changed while it predicted
        self._check_contract(session.contract)
        rows = self.agreement.rows(prediction)
        step_s = self.agreement.step_s
        of = seen.observation
        return write_actions(rows, of.timestamp, of.timestep, step_s), prediction

    def _request(self, seen: PendingObservation) -> PredictionRequest:
        """Return the request, of the agreement of now; the first of a client begins an episode."""
        if seen.agreement is not self.agreement:
            return self.agreement.request(seen.observation, episode_start=self._is_new)
        return replace(seen.request, episode_start=True) if self._is_new else seen.request

    def _check_contract(self, contract: PolicyContract) -> None:
        """Agree again once another policy is served. Raises PredictionError."""
        if contract != self.agreement.contract:
            self.agreement = agree_again(contract, self.agreement)


class Clients:
    """See the module."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._clients: dict[Caller, RobotClient] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, client: RobotClient) -> None:
        """Keep a client, in the place of the same caller's. Raises PredictionError."""
        if client.caller not in self._clients and len(self._clients) >= self._limit:
            self._make_room()
        self._clients[client.caller] = client

    def _make_room(self) -> None:
        oldest = min(self._clients.values(), key=lambda each: (each.running, each.used_s))
        if oldest.running or self._clock() - oldest.used_s < LEFT_AFTER_S:
            raise PredictionError(
                Status.OVERLOADED,
                f'{len(self._clients)} robot clients are connected, max_callers is {self._limit}; '
                'retry when one has left, or raise max_callers',
                retry_after_s=1.0,
            )
        del self._clients[oldest.caller]

    def forget(self, caller: Caller) -> None:
        """Remove a client that begins anew; no error without one."""
        self._clients.pop(caller, None)

    @contextlib.contextmanager
    def calling(self, caller: Caller) -> Iterator[RobotClient]:
        """Return the client of a call, for the time of the call. Raises PredictionError."""
        client = self._clients.get(caller)
        if client is None:
            raise invalid(NO_INSTRUCTIONS)
        client.running += 1
        try:
            yield client
        finally:
            client.running -= 1
            client.used_s = self._clock()

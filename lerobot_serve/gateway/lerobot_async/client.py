# SPDX-License-Identifier: Apache-2.0
"""One RobotClient: what was agreed with it, and its observations. The event loop owns it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import Prediction, PredictionRequest
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.lerobot_async.agreement import agree_again, Agreement
from lerobot_serve.gateway.lerobot_async.observations import Observations, PendingObservation
from lerobot_serve.gateway.lerobot_async.settings import LeRobotSettings
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.peer_formats.safe_pickle import (
    RemotePolicyConfig,
    TimedObservation,
    write_actions,
)

Chunk = tuple[bytes, Prediction]


class RobotClient:
    """Created by its policy instructions."""

    def __init__(
        self,
        caller: Caller,
        asked: RemotePolicyConfig,
        agreement: Agreement,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.caller, self.asked, self.agreement = caller, asked, agreement
        self.observations = Observations(clock=clock)
        self.is_receiving = False
        self._is_new = True

    def observe(self, seen: TimedObservation) -> str:
        """Keep an observation; return why one was dropped. Raises PredictionError."""
        request = self.agreement.request(seen, episode_start=False)
        return self.observations.put(PendingObservation(seen, self.agreement, request))

    async def chunk(self, gateway: Gateway, settings: LeRobotSettings) -> Chunk | None:
        """
        Return the chunk of the newest observation, None when none comes in time. Raises
        PredictionError.
        """
        seen = await self.observations.take(settings.observation_wait_s)
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
            self.agreement = agree_again(self.asked, contract, self.agreement)

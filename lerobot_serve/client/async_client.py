# SPDX-License-Identifier: Apache-2.0
"""
The client for programs with an event loop: many sessions in one thread.

All calls run in the loop that connected. What blocks (service calls, encoding, sending) runs in a
few threads of the client; a call that is cancelled leaves its place to the next one at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from functools import partial
from typing import Any, Unpack

from numpy.typing import ArrayLike

from lerobot_serve.client.connection import ClientFacts, Connection, make_connection
from lerobot_serve.client.results import PolicyInfo, Prediction
from lerobot_serve.client.session.facts import SessionFacts
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.session.state import SessionSettings
from lerobot_serve.client.settings import (
    client_settings,
    ClientSettings,
    ServerOptions,
    session_settings,
    SessionOptions,
)
from lerobot_serve.client.steps import AsyncClosing, PlanRunner
from lerobot_serve.client.streams.async_prediction_stream import AsyncPredictionStream


class AsyncPolicyClient(ClientFacts, AsyncClosing):
    """A connection to one policy server or router; use it in an `async with`."""

    def __init__(self, connection: Connection, runner: PlanRunner) -> None:
        super().__init__(connection)
        self._runner = runner

    @classmethod
    def connect(
        cls, server: str = 'policy_router', **options: Unpack[ServerOptions]
    ) -> Connecting:
        """
        Return what connects when it is awaited or entered; arguments and errors as in
        PolicyClient.connect.
        """
        return Connecting(client_settings(server, **options))

    async def describe(self, timeout_s: float | None = None) -> PolicyInfo:
        """Return what is served, once it is loaded. Raises ServerUnavailable."""
        return await self._runner.run(
            self._connection.describe(self._timeout_s(timeout_s), self._runner.signal())
        )

    async def open(
        self,
        *,
        client_id: str = '',
        timeout_s: float | None = None,
        **asked: Unpack[SessionOptions],
    ) -> AsyncPolicySession:
        """Open a session; arguments and errors as in PolicyClient.open."""
        limit_s = self._timeout_s(timeout_s)
        info = await self.describe(limit_s)

        def settings(name: str) -> SessionSettings:
            return session_settings(info, name, limit_s, **asked)

        session = await self._runner.make(
            partial(self._connection.new_session, client_id, settings), SessionPlans.close
        )
        try:
            await self._runner.run(session.open(limit_s, self._runner.signal()))
        except BaseException:
            await self._runner.end(session.close())
            raise
        return AsyncPolicySession(session, info, self._runner)

    async def close(self) -> None:
        """Close all sessions and the connection; another call completes one that was cancelled."""
        await self._runner.end(self._connection.close())
        await self._runner.close()


class Connecting(Awaitable[AsyncPolicyClient]):
    """A client that connects when it is awaited or entered."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._client: AsyncPolicyClient | None = None

    async def _connect(self) -> AsyncPolicyClient:
        runner = PlanRunner()
        try:
            connection = await runner.make(
                partial(make_connection, self._settings), Connection.close
            )
        except BaseException:
            await runner.close()
            raise
        client = AsyncPolicyClient(connection, runner)
        try:
            wait = connection.wait_for_server(self._settings.timeout_s, runner.signal())
            await runner.run(wait)
        except BaseException:
            await client.close()
            raise
        return client

    def __await__(self) -> Generator[Any, Any, AsyncPolicyClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncPolicyClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        if self._client:
            await self._client.close()


class AsyncPolicySession(SessionFacts, AsyncClosing):
    """One session: one request in flight. Of several tasks the newest waits."""

    def __init__(self, plans: SessionPlans, info: PolicyInfo, runner: PlanRunner) -> None:
        super().__init__(plans, info)
        self._runner = runner

    async def predict(
        self,
        state: ArrayLike,
        images: Mapping[str, Any] | None = None,
        task: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Return a chunk of actions; arguments and errors as in PolicySession.predict."""
        observed = self._check(state, images)
        limit_s = self._limit_s(timeout_s)
        return await self._runner.run(
            self._plans.predict(observed, task, limit_s, self._runner.signal())
        )

    async def begin_episode(self, *, task: str | None = None, episode_id: str = '') -> str:
        """End the episode and begin the next one; return its id."""
        return await self._runner.run(self._plans.begin_episode(task, episode_id, self.timeout_s))

    reset = begin_episode

    def stream(self, timeout_s: float | None = None) -> AsyncPredictionStream:
        """Return a stream of predictions for the newest observation."""
        limit_s = self._limit_s(timeout_s)
        return AsyncPredictionStream(self._plans, self._check, self._runner, limit_s)

    async def close(self) -> None:
        """Close the session; another call completes one that was cancelled."""
        await self._runner.end(self._plans.close())

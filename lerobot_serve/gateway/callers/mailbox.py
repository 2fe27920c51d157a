# SPDX-License-Identifier: Apache-2.0
"""The turns of one caller: one request runs, the newest other one waits."""

from __future__ import annotations

import asyncio

from lerobot_serve.gateway.callers.predictions import PredictionError, Status

SUPERSEDED = 'a newer request of this caller replaced this one; use its prediction'


class LatestOnly:
    """
    `async with` it: waits for the turn, and holds it. Raises PredictionError (SUPERSEDED) when a
    newer request arrives while this one waits. The event loop owns it.
    """

    def __init__(self) -> None:
        self._is_busy = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request runs."""
        return self._is_busy

    async def __aenter__(self) -> None:
        if self._is_busy:
            await self._wait()
        self._is_busy = True

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    async def _wait(self) -> None:
        # one that was cancelled just now has not run since
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(PredictionError(Status.SUPERSEDED, SUPERSEDED))
        mine = self._waiting = asyncio.get_running_loop().create_future()
        try:
            await mine
        except asyncio.CancelledError:
            if self._waiting is mine:
                self._waiting = None
            elif not mine.cancelled() and mine.exception() is None:
                # cancelled after the turn was handed over
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the waiting request, if any; the caller stays busy until then."""
        waiting, self._waiting = self._waiting, None
        if waiting and not waiting.done():
            waiting.set_result(None)
        else:
            self._is_busy = False

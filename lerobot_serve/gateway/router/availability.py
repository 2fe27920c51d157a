# SPDX-License-Identifier: Apache-2.0
"""
Whether the router responds: checked at start and after each loss, until it responds again.

The event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
import contextlib

from lerobot_serve.contract.records import GetStatusResponse
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.gateway.router.outcomes import unavailable
from lerobot_serve.gateway.router.policy_contract import contract_of_status
from lerobot_serve.gateway.upstream import PolicyContract

RETRY_S = 0.25
# the first callers wait so long for a router that has just been discovered
FIRST_WAIT_S = 3.0


class Availability:
    """`read_status` returns the status of the router, or raises ServerUnreachable."""

    def __init__(
        self,
        server: str,
        read_status: Callable[[], Awaitable[GetStatusResponse]],
        log: Callable[[str], object],
    ) -> None:
        self._server, self._read_status, self._log = server, read_status, log
        # why no session can be opened, empty when one can
        self.problem = f'{server} has not responded yet'
        self.contract: PolicyContract | None = None
        # counts what is known better than by a status that was asked for before
        self._news = 0
        self._first = asyncio.Event()
        self._check: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Check in a task, until the router responds."""
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._run())

    def lost(self, text: str) -> None:
        """Refuse callers until the router responds again."""
        if not self.problem:
            self._log(f'{self._server}: {text}; callers are refused until it responds')
        self._news += 1
        self.problem = text
        self.start()

    def responded(self) -> None:
        """Note that the router has just opened a session."""
        self._news += 1
        self.problem = ''

    async def require(self) -> PolicyContract:
        """Return the contract. Raises PredictionError (UNAVAILABLE)."""
        if self.problem and not self._first.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._first.wait(), FIRST_WAIT_S)
            self._first.set()
        if self.problem or self.contract is None:
            raise unavailable(f'{self.problem}; retry later')
        return self.contract

    async def refresh(self) -> PolicyContract:
        """Read the status now and return the contract. Raises PredictionError (UNAVAILABLE)."""
        await self.require()
        await self._check_once()
        if self.problem:
            self.start()
        return await self.require()

    async def _run(self) -> None:
        while True:
            await self._check_once()
            if not self.problem:
                return
            await asyncio.sleep(RETRY_S)

    async def _check_once(self) -> None:
        news = self._news
        try:
            reply = await self._read_status()
        except ServerUnreachable as error:
            # a call to a server that has ended is answered by no successor
            self.problem = str(error) if news == self._news else self.problem
            return
        if not reply.action_names:
            text = reply.status.text or 'it serves no policy yet'
            self.problem = f'{self._server} is not ready: {text}'
            return
        self.contract = contract_of_status(reply)
        if news != self._news:
            return
        if self.problem:
            self._log(f'{self._server} responds')
        self.problem = ''
        self._first.set()

    async def close(self) -> None:
        """End the check."""
        if self._check:
            self._check.cancel()
            await asyncio.wait([self._check])

# SPDX-License-Identifier: Apache-2.0
"""
What the sessions of callers have of the router: its services, and the way of their requests.

The event loop owns it; calls that block have threads of a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
import contextlib
import hashlib
import secrets
from typing import Any, TypeVar

from msgspec.structs import replace

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.records import (
    CameraSpec,
    GetStatusResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.core import Log
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.router.availability import Availability
from lerobot_serve.gateway.router.image_encoding import ImageEncoder
from lerobot_serve.gateway.router.outcomes import refusal_error, unavailable
from lerobot_serve.gateway.router.policy_contract import contract_of_session, required_policy
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.links.server_client import ServerClient

T = TypeVar('T')
# calls that block, such as sessions that are opened at once
CALL_THREADS = 8
STATUS_TIMEOUT_S, OPEN_TIMEOUT_S, MATCH_TIMEOUT_S, CLOSE_TIMEOUT_S = 1.0, 5.0, 3.0, 1.0
# at the end, for the calls that a router does not answer
CALLS_END_S = 1.0
# of a policy that does not say its rate
DEFAULT_HZ = 30.0


class RouterCalls:
    """See the module. Built in the event loop."""

    def __init__(self, client: ServerClient, settings: GatewayParameters, log: Log) -> None:
        self._client, self._settings, self._log = client, settings, log
        self._loop = asyncio.get_running_loop()
        self._calls = ThreadPoolExecutor(CALL_THREADS, 'upstream')
        self._running: set[Future[Any]] = set()
        self.images = ImageEncoder(settings)
        # of this process; each caller derives its own instance from it
        self._secret = secrets.token_bytes(16)
        self.availability = Availability(client.server, self._read_status, log.warning)
        self.reply_topic = client.reply_topic

    async def close(self) -> None:
        """End the threads, and await their calls: the link is closed next, and they use it."""
        self.images.close()
        self._calls.shutdown(wait=False, cancel_futures=True)
        await ended(*map(asyncio.wrap_future, tuple(self._running)))

    async def terms_of(self, client_id: str, own: OpenSessionRequest | None) -> OpenSessionRequest:
        """Return the terms of a session, its caller's or the policy's. Raises PredictionError."""
        contract = await self.availability.require()
        digest = hashlib.blake2s(client_id.encode(), digest_size=8, key=self._secret).digest()
        terms = own or OpenSessionRequest(
            state_names=contract.state_names,
            action_names=contract.action_names,
            cameras=tuple(
                CameraSpec(name, channels=channels)
                for name, (_, _, channels) in contract.cameras.items()
            ),
        )
        return replace(
            terms,
            client_id=client_id,
            # each caller is a client of its own; the same in each of its sessions
            instance=int.from_bytes(digest, 'big') >> 1,
            fps=terms.fps or contract.control_hz or DEFAULT_HZ,
            robot_type='gateway',
            policy=required_policy(self._settings.required_policy, terms.policy),
            codec=self.images.codec,
            reply_deadline_s=self._settings.request_timeout_s,
        )

    async def open_session(
        self, request: OpenSessionRequest
    ) -> tuple[OpenSessionResponse, PolicyContract]:
        """Open a session. Raises PredictionError."""
        try:
            reply = await self._call(self._client.open, request, OPEN_TIMEOUT_S)
            await self._call(self._client.wait_until_matched, MATCH_TIMEOUT_S)
        except ServerUnreachable as error:
            self.availability.lost(str(error))
            raise unavailable(f'{error}; retry later') from None
        except SessionRefused as refused:
            # its names may have changed since they were read
            self.availability.start()
            raise refusal_error(refused) from None
        self.availability.responded()
        try:
            return reply, contract_of_session(reply)
        except PredictionError:
            # the router has opened it, and holds a place for it
            await self.close_session(request)
            raise

    async def close_session(self, request: OpenSessionRequest) -> None:
        """Close a session; a router that is away closes it by its own timeout."""
        if not self.availability.problem:
            with contextlib.suppress(ServerUnreachable):
                await self._call(self._client.close, request, CLOSE_TIMEOUT_S)

    def send(self, raw: Outgoing) -> None:
        """Send a request. Raises PredictionError while the router is away."""
        if self.availability.problem:
            raise unavailable(f'{self.availability.problem}; retry later')
        self._client.send(raw)

    def announce(self, episode: ResetEpisodeRequest) -> None:
        """Announce an episode; its first request says so too."""

        def on_refusal(text: str) -> None:
            self.in_loop(
                self._log.info,
                f'{episode.client_id}: the router rejected the reset of its episode: {text}',
            )

        self._client.announce(episode, on_refusal)

    def in_loop(self, process: Callable[..., object], *arguments: object) -> None:
        """Run a function in the event loop. Any thread."""
        # a closed loop: the gateway ends
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(process, *arguments)

    async def _read_status(self) -> GetStatusResponse:
        return await self._call(self._client.status, STATUS_TIMEOUT_S)

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a call that blocks in a thread of the pool."""
        call = self._calls.submit(function, *arguments)
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(call)


async def ended(*work: Awaitable[object]) -> None:
    """Await all, with their errors, and not for longer than CALLS_END_S."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CALLS_END_S):
            await asyncio.gather(*work, return_exceptions=True)

# SPDX-License-Identifier: Apache-2.0
"""
Keep one connection to a remote server: connect, predict with a timeout, connect again after a
failure with growing pauses. While there is no connection, `predict` fails at once, so that the
router can use another replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
import concurrent.futures
import contextlib
import threading
from typing import Any, TypeVar

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.error_text import one_line
from lerobot_serve.policies.remote.metadata import digest_of
from lerobot_serve.policies.remote.peer import (
    MakePeer,
    named,
    Peer,
    PeerChanged,
    PeerError,
    PeerObservation,
    PeerRefused,
    PeerReply,
    PeerTimeout,
    PeerUnavailable,
)
from lerobot_serve.policies.runtime.loading_beside import at_serving_priority

T = TypeVar('T')
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CLOSE_TIMEOUT_S = 2.0
# beyond the timeout of a step, for the event loop itself
LOOP_MARGIN_S = 2.0
CHANGED = (
    'the server now reports other metadata, so it serves another policy; restart this '
    'policy_server to serve it under its own fingerprint, or name the fields that identify the '
    'policy in metadata_keys'
)


class PeerConnection:
    """
    `start`, `predict` and `close` are called by one thread at a time; they wait for the event loop
    of the thread `remote peer`, which does everything else.
    """

    def __init__(
        self,
        where: str,
        make_peer: MakePeer,
        *,
        connect_timeout_s: float,
        predict_timeout_s: float,
        select: Callable[[dict[str, Any]], dict[str, Any]] = lambda metadata: metadata,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """`where` is the address in texts; `select` returns the part that must not change."""
        self._where, self._make_peer, self._select = where, make_peer, select
        self._connect_timeout_s, self._predict_timeout_s = connect_timeout_s, predict_timeout_s
        self._first_pause_s = self._pause_s = first_pause_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name='remote peer', daemon=True)
        # on the event loop
        self._peer: Peer | None = None
        self._reason = 'not connected'
        self._digest = ''
        self._reconnecting: asyncio.Task[None] | None = None

    def start(self) -> dict[str, Any]:
        """Connect and return the metadata of the server. Raises PeerError and ends the thread."""
        at_serving_priority(self._thread.start)
        try:
            return self._call(self._first_connect(), self._connect_timeout_s + CLOSE_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def predict(self, observation: PeerObservation) -> PeerReply:
        """Return the reply to one observation. Raises PeerError, within the timeout."""
        return self._call(self._predict(observation), self._predict_timeout_s)

    def close(self) -> None:
        """Close the connection and end the thread; again is allowed."""
        if self._thread.is_alive():
            with contextlib.suppress(PeerError):
                self._call(self._shut(), CLOSE_TIMEOUT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _call(self, step: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a step on the event loop and return its result."""
        try:
            future = asyncio.run_coroutine_threadsafe(step, self._loop)
        except RuntimeError:
            step.close()
            raise PeerUnavailable(f'{self._where}: the connection is closed') from None
        try:
            return future.result(timeout_s + LOOP_MARGIN_S)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise PeerTimeout(f'{self._where}: no result after {timeout_s:g} s') from None

    # on the event loop

    async def _first_connect(self) -> dict[str, Any]:
        self._peer, metadata = await self._connect()
        with named(self._where):
            self._digest = digest_of(self._select(metadata))
        return metadata

    async def _connect(self) -> tuple[Peer, dict[str, Any]]:
        # for a connection that ends between two requests
        peer: Peer = self._make_peer(lambda why: self._lose(peer, f'{self._where}: {why}'))
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                with named(self._where):
                    metadata = await peer.connect()
        except BaseException as error:
            await self._discard(peer)
            if isinstance(error, TimeoutError):
                raise PeerTimeout(
                    f'{self._where}: no connection within connect_timeout_s '
                    f'({self._connect_timeout_s:g} s)'
                ) from None
            raise
        return peer, metadata

    async def _predict(self, observation: PeerObservation) -> PeerReply:
        peer = self._peer
        if peer is None:
            raise PeerUnavailable(f'{self._reason}; connecting again in the background')
        try:
            async with asyncio.timeout(self._predict_timeout_s):
                with named(self._where):
                    reply = await peer.predict(observation)
        except TimeoutError:
            text = (
                f'{self._where}: no reply within predict_timeout_s ({self._predict_timeout_s:g} s)'
            )
            self._lose(peer, text)
            raise PeerTimeout(text) from None
        except (PeerRefused, PeerChanged):
            # a whole reply; the connection is in order
            raise
        except (Exception, asyncio.CancelledError) as error:
            # also a request that `_call` gives up: its reply would be taken for the next one's
            self._lose(peer, self._text(error))
            raise
        self._pause_s = self._first_pause_s
        return reply

    def _lose(self, peer: Peer, reason: str) -> None:
        """Discard a connection and begin to connect again, once for each connection."""
        if self._peer is not peer:
            return
        self._peer, self._reason = None, reason
        self._reconnecting = self._loop.create_task(self._reconnect(peer))

    async def _reconnect(self, lost: Peer) -> None:
        await self._discard(lost)
        while self._peer is None:
            await asyncio.sleep(self._pause_s)
            # grows until a prediction succeeds, not only until a connection does
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            try:
                self._peer = await self._connect_to_same()
            except Exception as error:
                # whatever fails, such as TLS files that are replaced just now, may work later
                self._reason = self._text(error)

    async def _connect_to_same(self) -> Peer:
        """Return a connection to the same policy. Raises PeerChanged, and what `_connect` does."""
        peer, metadata = await self._connect()
        try:
            with named(self._where):
                if digest_of(self._select(metadata)) != self._digest:
                    raise PeerChanged(CHANGED)
        except BaseException:
            await self._discard(peer)
            raise
        return peer

    def _text(self, error: BaseException) -> str:
        is_own = isinstance(error, PolicyError)
        return str(error) if is_own else f'{self._where}: {one_line(error)}'

    async def _discard(self, peer: Peer) -> None:
        # whatever fails here fails on a connection that is no longer used
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await peer.close()

    async def _shut(self) -> None:
        if self._reconnecting:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting], timeout=CLOSE_TIMEOUT_S)
        peer, self._peer, self._reason = self._peer, None, f'{self._where}: closed'
        if peer:
            await self._discard(peer)

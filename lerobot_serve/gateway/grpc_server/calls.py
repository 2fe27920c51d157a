# SPDX-License-Identifier: Apache-2.0
"""
The calls that run at a gRPC server: bounded in number, for each address, and in their rest.

A call rests while it awaits a message. One that rests for too long ends; where all places are
taken, the call that rests longest gives way, and where all of one address are taken, that of this
address. The event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
import time

from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.core import GIVES_WAY_S

# the rest is left to other addresses
ADDRESS_SHARE = 0.75
RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class CallSettings:
    """
    max_calls        calls that run at the same time
    idle_timeout_s   longest wait for the next message of a stream
    first_message_s  longest wait for the only message of a call
    gives_way_s      shortest rest after which a call gives way
    """

    max_calls: int
    idle_timeout_s: float
    first_message_s: float = 10.0
    gives_way_s: float = GIVES_WAY_S

    @property
    def max_calls_of_address(self) -> int:
        return max(1, int(ADDRESS_SHARE * self.max_calls))


class Call:
    """One call. `timeout` ends it, from anywhere in the loop."""

    def __init__(self, address: str, timeout: asyncio.Timeout, calls: Calls) -> None:
        self.address, self._timeout, self._calls = address, timeout, calls
        self.rests_since_s = 0.0
        self.reason = self.text = ''
        self._limit_s: float | None = None
        self._working = 0

    def rest(self, limit_s: float | None, text: str = '') -> None:
        """Await a message, at most `limit_s`; `text` is why the call ends then."""
        self._limit_s, self.reason, self.text = limit_s, 'idle', text
        self._begin_rest()

    def touch(self) -> None:
        """Begin the rest anew: a message came."""
        self._begin_rest()

    def _begin_rest(self) -> None:
        if not self._working:
            self._calls.rests(self)
            loop = asyncio.get_running_loop()
            self._end_at(None if self._limit_s is None else loop.time() + self._limit_s)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Do not rest while a request of the call runs."""
        self._working += 1
        self._calls.works(self)
        self._end_at(None)
        try:
            yield
        finally:
            self._working -= 1
            self._begin_rest()

    def end(self, reason: str, text: str) -> None:
        """End now; `text` is for the caller."""
        self.reason, self.text = reason, text
        self._end_at(asyncio.get_running_loop().time())

    @property
    def has_expired(self) -> bool:
        return self._timeout.expired()

    def _end_at(self, when_s: float | None) -> None:
        # while it ends, what it did ends too
        if not self._timeout.expired():
            self._timeout.reschedule(when_s)


class Calls:
    """See the module. `on_refused` gets a word, the address and a sentence."""

    def __init__(
        self,
        settings: CallSettings,
        on_refused: Callable[[str, str, str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.on_refused, self._clock = settings, on_refused, clock
        self._running: set[Call] = set()
        self._by_address: Counter[str] = Counter()
        # the one that rests longest is the first
        self._resting: OrderedDict[Call, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    @contextlib.contextmanager
    def running(self, address: str, timeout: asyncio.Timeout) -> Iterator[Call]:
        """Keep the place of a call. Raises PredictionError (OVERLOADED)."""
        self._admit(address)
        call = Call(address, timeout, self)
        self._running.add(call)
        self._by_address[address] += 1
        try:
            yield call
        finally:
            self._forget(call)

    def _admit(self, address: str) -> None:
        settings, count = self.settings, self._by_address[address]
        if count >= settings.max_calls_of_address:
            own = (call for call in self._resting if call.address == address)
            if not self._gives_way(next(own, None), f'{count} places for calls of {address}'):
                raise self._refused(
                    'max_calls_of_address',
                    address,
                    f'{count} calls of {address} run, {settings.max_calls_of_address} are allowed '
                    'to one address; end streams that are not used, or raise max_callers',
                )
        limit = settings.max_calls
        if len(self._running) >= limit:
            oldest = next(iter(self._resting), None)
            if not self._gives_way(oldest, f'{limit} places for calls'):
                raise self._refused(
                    'max_calls',
                    address,
                    f'{limit} calls run, no more are allowed; retry when one has ended, or raise '
                    'max_callers',
                )

    def _gives_way(self, oldest: Call | None, places: str) -> bool:
        """Return whether a call gives way to a new one, and end it then."""
        rest_s = self._clock() - oldest.rests_since_s if oldest else 0.0
        if oldest is None or rest_s < self.settings.gives_way_s:
            return False
        self._forget(oldest)
        text = f'all {places} were taken, and this one sent nothing for {rest_s:.0f} s; call again'
        oldest.end('gave_way', text)
        return True

    def _refused(self, reason: str, address: str, text: str) -> PredictionError:
        self.on_refused(reason, address, text)
        return PredictionError(Status.OVERLOADED, text, RETRY_AFTER_S)

    def _forget(self, call: Call) -> None:
        self._resting.pop(call, None)
        if call in self._running:
            self._running.remove(call)
            self._by_address[call.address] -= 1
            if not self._by_address[call.address]:
                del self._by_address[call.address]

    # for the calls

    def rests(self, call: Call) -> None:
        if call in self._running:
            call.rests_since_s = self._clock()
            self._resting[call] = None
            self._resting.move_to_end(call)

    def works(self, call: Call) -> None:
        self._resting.pop(call, None)

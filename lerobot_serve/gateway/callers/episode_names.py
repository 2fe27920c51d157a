# SPDX-License-Identifier: Apache-2.0
"""
The names of episodes at the router: those of callers, each within its own name space.

A router places an episode by its name, for all clients. So the name that a caller chose is
extended by its owner, and no caller reaches the episode of another. How many a caller begins is
bounded. Pure; the event loop calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
import hashlib

from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import PredictionError, Status

# names that are remembered of one owner, and within which time it may not begin more
EPISODES_LIMIT, EPISODES_PERIOD_S = 1024, 60.0
OWNERS_LIMIT = 1024
DIGEST_BYTES = 8


class EpisodeNames:
    """
    See the module. `on_forgotten` is called for each name beyond the limit, the oldest first; one
    that comes back counts as a new one.
    """

    def __init__(
        self, on_forgotten: Callable[[Caller], object], *, clock: Callable[[], float]
    ) -> None:
        self._on_forgotten, self._clock = on_forgotten, clock
        # owner -> name -> when it began, the oldest first
        self._begun_s: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()

    def name_at_router(self, caller: Caller, episode_id: str) -> str:
        """
        Return the name of an episode at the router, '' for none. Raises PredictionError
        (OVERLOADED) for a caller that begins too many.
        """
        if not episode_id:
            return ''
        owner = caller.episode_owner
        self._count(caller, owner, episode_id)
        return scoped_name(owner, episode_id)

    def _count(self, caller: Caller, owner: str, episode_id: str) -> None:
        names = self._begun_s.setdefault(owner, OrderedDict())
        self._begun_s.move_to_end(owner)
        while len(self._begun_s) > OWNERS_LIMIT:
            self._begun_s.popitem(last=False)
        if episode_id in names:
            return
        now_s = self._clock()
        if len(names) >= EPISODES_LIMIT:
            self._forget_oldest(caller, names, now_s)
        names[episode_id] = now_s

    def _forget_oldest(self, caller: Caller, names: OrderedDict[str, float], now_s: float) -> None:
        oldest, begun_s = next(iter(names.items()))
        wait_s = begun_s + EPISODES_PERIOD_S - now_s
        if wait_s > 0:
            raise PredictionError(
                Status.OVERLOADED,
                f'{len(names)} episodes began within {EPISODES_PERIOD_S:g} s, {EPISODES_LIMIT} '
                'are allowed; use one episode_id for all requests of an episode',
                wait_s,
            )
        del names[oldest]
        self._on_forgotten(caller)


def scoped_name(owner: str, episode_id: str) -> str:
    """Return a name that no other owner can choose: printable, bounded, the same each time."""
    whole = f'{owner}\0{episode_id}'.encode('utf-8', 'surrogatepass')
    end = f'~{hashlib.blake2s(whole, digest_size=DIGEST_BYTES).hexdigest()}'
    start = episode_id.encode('utf-8', 'replace')[: ID_LIMIT - len(end)]
    return start.decode(errors='ignore') + end

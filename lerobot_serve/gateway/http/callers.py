# SPDX-License-Identifier: Apache-2.0
"""
Which session a request over HTTP belongs to. Pure; the event loop calls.

A caller that names itself (`client_id`) has one session. Without a name, each episode_id of a host
is a session of its own; with neither, all requests of a host share one.
"""

from __future__ import annotations

from collections import OrderedDict

from lerobot_serve.gateway.callers.caller import Caller

# an episode whose last request is older than this gives way to a new one
EPISODE_IDLE_S = 10.0


class EpisodeCallers:
    """The callers that are known by their episode alone, the least recent first."""

    def __init__(self) -> None:
        self._used_s: OrderedDict[Caller, float] = OrderedDict()

    def note(self, caller: Caller, now_s: float, callers: tuple[Caller, ...]) -> None:
        """Note a request; with a new episode, forget those without a session: not in `callers`."""
        if caller not in self._used_s:
            self.keep(callers)
        self._used_s[caller] = now_s
        self._used_s.move_to_end(caller)

    def take_idle(self, now_s: float) -> Caller | None:
        """Return and forget the caller that is idle for longest, None where all are in use."""
        caller = next(iter(self._used_s), None)
        if caller is None or now_s - self._used_s[caller] < EPISODE_IDLE_S:
            return None
        del self._used_s[caller]
        return caller

    def keep(self, callers: tuple[Caller, ...]) -> None:
        """Forget those that have no session any more."""
        for caller in self._used_s.keys() - set(callers):
            del self._used_s[caller]


def caller_of(
    protocol: str, host: str, *, token_name: str, client_id: str, episode_id: str
) -> Caller:
    """Return who asks; the name of the token is part of it: nobody takes another's session."""
    own = client_id or episode_id
    name = '/'.join(filter(None, (token_name, own)))
    # an episode is no owner of episodes
    who = '/'.join(filter(None, (token_name, client_id)))
    return Caller(protocol, host, name, owner=f'{host}/{who}')

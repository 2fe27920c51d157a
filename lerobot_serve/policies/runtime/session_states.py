# SPDX-License-Identifier: Apache-2.0
"""
Hidden states of recurrent policies by session; the least recently kept are discarded.

Inference thread. `take` changes nothing, so that a failed prediction leaves every state unchanged;
the policy keeps the new states after a successful one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar('T')


class SessionStates(Generic[T]):
    """See the module."""

    def __init__(self, limit: int) -> None:
        """Keep at most `limit` sessions. Raises ValueError if that is below 1."""
        if limit < 1:
            raise ValueError(f'state_limit must be at least 1, got {limit}')
        self._limit = limit
        self._kept: OrderedDict[str, tuple[int, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, session_id: str, episode: int, episode_start: bool) -> tuple[T | None, bool]:
        """
        Return the state to continue with, None for a new one, and whether a state is lost.

        The start of an episode, or a change of episode, needs a new state. A state is lost if the
        request continues an episode without a kept state.
        """
        if episode_start:
            return None, False
        if session_id not in self._kept:
            return None, True
        kept_episode, state = self._kept[session_id]
        return (state if kept_episode == episode else None), False

    def keep(self, session_id: str, episode: int, state: T) -> None:
        """Keep the state after a prediction; discard the least recent one above the limit."""
        self._kept[session_id] = (episode, state)
        self._kept.move_to_end(session_id)
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def discard(self, session_id: str) -> None:
        """Discard the state of a session, if there is one."""
        self._kept.pop(session_id, None)

"""
The hidden states of recurrent policies, by session: so many, the least recently kept go first.

Belongs to the thread that predicts. Taking changes nothing, so that a prediction that fails leaves
every state as it was; the policy keeps the new states when all went well.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar('T')


class SessionStates(Generic[T]):
    """See the module."""

    def __init__(self, limit: int) -> None:
        """Remember no more than `limit` sessions. Raises ValueError when that is below 1."""
        if limit < 1:
            raise ValueError(f'state_limit must be at least 1, got {limit}')
        self._limit = limit
        self._kept: OrderedDict[str, tuple[int, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, session_id: str, episode: int, episode_start: bool) -> tuple[T | None, bool]:
        """
        Return the state to go on with, and whether one is lost; None to begin anew.

        An episode that starts, or another than the last, begins anew. It is lost when the request
        goes on with an episode of which nothing is remembered.
        """
        if episode_start:
            return None, False
        if session_id not in self._kept:
            return None, True
        kept_episode, state = self._kept[session_id]
        return (state if kept_episode == episode else None), False

    def keep(self, session_id: str, episode: int, state: T) -> None:
        """Remember the state after a prediction; the least recently kept beyond the limit goes."""
        self._kept[session_id] = (episode, state)
        self._kept.move_to_end(session_id)
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def forget(self, session_id: str) -> None:
        """Forget one session, also one never heard of."""
        self._kept.pop(session_id, None)

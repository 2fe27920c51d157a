# SPDX-License-Identifier: Apache-2.0
"""Where an episode of one connection begins: openpi's wire does not say it. Pure."""

from __future__ import annotations

from lerobot_serve.gateway.openpi.observation import Observation


class Episodes:
    """
    The episodes of one connection. A new one begins with the first request, after a reset, with
    another session_id, and where `by_task` is set with another instruction.
    """

    def __init__(self, *, by_task: bool) -> None:
        self._by_task = by_task
        self._is_new, self._task, self._episode_id = True, '', ''

    def on_reset(self) -> None:
        """Let the next request begin an episode."""
        self._is_new = True

    def is_start(self, found: Observation) -> bool:
        """Return whether this request begins an episode."""
        is_other = found.episode_id != self._episode_id
        is_other |= self._by_task and found.task != self._task
        return self._is_new or is_other

    def on_predicted(self, found: Observation) -> None:
        """Continue the episode of a request; one that failed leaves its start to the next one."""
        self._is_new, self._task, self._episode_id = False, found.task, found.episode_id

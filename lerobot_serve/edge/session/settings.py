# SPDX-License-Identifier: Apache-2.0
"""Request settings of node and operators: timing and merging, task and id of an episode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """
    Timing of requests, and how a chunk is merged into the queue.

    append  a chunk that does not continue the queue is appended instead of replacing it
    """

    step_s: float
    request_threshold_s: float
    request_timeout_s: float
    degraded_after_s: float = 1.0
    max_offline_s: float = 60.0
    max_action_age_s: float = 3.0
    append: bool = True
    rtc: bool = False
    execution_horizon: int = 0
    # consecutive timeouts after which the session is closed
    max_consecutive_timeouts: int = 2


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Task and id of an episode; an empty id is generated."""

    task: str = ''
    episode_id: str = ''

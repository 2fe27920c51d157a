# SPDX-License-Identifier: Apache-2.0
"""
Which episodes a learner trains on, by outcome and interventions, in the words of
`lerobot-serve dataset --filter`. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from lerobot_serve.experience.recorded_episode import RecordedEpisode

SUCCESS, FAILURE, INTERVENTION = 'success', 'failure', 'intervention'
FILTERS = (SUCCESS, FAILURE, INTERVENTION)


def is_selected(episode: RecordedEpisode, filters: Sequence[str]) -> bool:
    """
    Return whether an episode passes: success and failure are alternatives, intervention holds
    besides.
    """
    outcomes = [each for each in filters if each != INTERVENTION]
    has_outcome = not outcomes or episode.outcome in outcomes
    return has_outcome and (INTERVENTION not in filters or episode.control_steps_person > 0)
